"""What the agents of the next release may say to this server, and what people may not."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.measured.messages import (
    Beat,
    HelloReport,
    NextRequest,
    RaceReport,
    RegisterAgent,
    SessionEnd,
)
from advisor.protocol.measured.runs import RunReport
from advisor.protocol.nodes.cluster import Node
from advisor.protocol.nodes.testbed import Testbed

_NODE = {
    "hostname": "h", "cpu_count": 1, "memory_bytes": 1, "testbed": {"nodes": 2, "rate": "1gbit"},
    "devices": [{"index": 0, "uuid": "u", "name": "H200", "memory_bytes": 1}],
    "links": [{"name": "eth0", "address": "10.0.0.1"}],
}  # fmt: skip
_FACTS = {
    "backend": "gloo", "device": "cpu", "world_size": 2, "local_world_size": 2, "gradient_bytes": 4000,
    "parameter_tensors": 4, "layers": 2, "batch_size_per_rank": 8, "ddp": {"static_graph": True},
}  # fmt: skip
_RESULT = {
    "steps": 1, "step_time_s": [0.1], "samples_per_step": 1, "wall_s": 0.1, "phases": {"forward_s": 0.1},
}  # fmt: skip
RECORDED: list[tuple[type[BaseModel], dict[str, Any], tuple[str, ...]]] = [
    (RegisterAgent, {"name": "a", "node": _NODE, "secret": "its own"}, ("node", "testbed")),
    (RegisterAgent, {"name": "a", "node": _NODE, "secret": "its own"}, ("node", "devices")),
    (RegisterAgent, {"name": "a", "node": _NODE, "secret": "its own"}, ("node", "links")),
    (Beat, {"generation": 1, "state": "ready", "telemetry": {}}, ("telemetry",)),
    (HelloReport, {"generation": 1, "facts": _FACTS, "baseline": {}}, ("facts", "ddp")),
    (NextRequest, {"generation": 1}, ()),
    (RaceReport, {"generation": 1, "results": {"b": _RESULT}}, ("results", "b", "phases")),
    (
        SessionEnd,
        {"generation": 1, "outcome": "lost", "reason": "", "trouble": {"code": "x", "sentence": "y"}},
        ("trouble",),
    ),
    (RunReport, {"host": "h", "ranks": 1, "step": 1, "step_s": 1, "samples_per_s": 1}, ()),
]
"""Messages of this release, and a way down into each."""


def _add_fields(message: dict[str, Any], way: tuple[str, ...]) -> dict[str, Any]:
    """The message with a field more in every model on the way; a dictionary of models has no fields."""
    added = message if way and way[0] == "b" else {**message, "of_the_next_release": {"deep": 1}}
    if not way:
        return added
    below = message[way[0]]
    inner = (
        [_add_fields(entry, way[1:]) for entry in below]
        if isinstance(below, list)
        else _add_fields(below, way[1:])
    )
    return {**added, way[0]: inner}


@pytest.mark.parametrize(("model", "message", "way"), RECORDED)
def test_message_of_a_newer_agent_is_understood(model, message, way) -> None:
    assert model.model_validate(_add_fields(message, way)) == model.model_validate(message)


def test_node_keeps_its_testbed_where_a_newer_agent_says_more_of_it() -> None:
    node = Node.model_validate(_add_fields(_NODE, ("testbed",)))
    assert node.testbed == Testbed(nodes=2, rate="1gbit")


@pytest.mark.parametrize("place", [(), ("workload",), ("budget",), ("testbed",)])
def test_unknown_field_of_a_person_is_refused_by_name(place) -> None:
    spec: dict[str, Any] = {
        "workload": {"command": ["torchrun", "x.py"]},
        "budget": {},
        "nodes": 2,
        "testbed": {"nodes": 2, "rate": "1gbit"},
    }
    with pytest.raises(ValidationError, match="of_the_next_release"):
        JobSpec.model_validate(_add_fields(spec, place))
