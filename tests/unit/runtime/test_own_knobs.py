"""What `fleet_advisor.knob` answers, and what proves that a script's own knob is in force."""

import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from agent.runtime import current
from agent.runtime.levers.lever import Training
from agent.runtime.levers.own_knobs import OwnKnobs
from tests.unit.runtime.test_computation_levers import load

ABOUT = {
    "micro": {
        "how": "2 since the launch: --micro in the command.",
        "values": [1, 2],
        "hot": False,
        "exact": True,
    },
    "asked": {"how": "", "values": [1, 2], "hot": False, "exact": True},
    "width": {"how": "", "values": [4, 8], "hot": True, "exact": False},
}


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("its_fleet_advisor", "agent/runtime/api/fleet_advisor.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "fleet_advisor_runtime.current", current)
    yield module
    current.own_values.clear()
    current.own_asked.clear()
    current.own_defaults.clear()


def test_outside_of_a_trial_a_script_has_todays_value(api: ModuleType) -> None:
    assert (api.knob("width", 4), api.knob("rate", 0.5), api.knob("fast", False)) == (4, 0.5, False)


def test_the_launch_tells_a_value_in_the_type_of_todays(
    api: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADVISOR_KNOB_width", "8")
    monkeypatch.setenv("ADVISOR_KNOB_fast", "true")
    monkeypatch.setenv("ADVISOR_KNOB_mode", "full")
    assert (api.knob("width", 4), api.knob("fast", False), api.knob("mode", "none")) == (8, True, "full")


def test_a_hot_knob_is_switched_between_steps_and_proved_by_being_asked(api: ModuleType) -> None:
    lever = OwnKnobs(ABOUT)
    assert (lever.knobs, lever.changes_training) == (("width",), ("width",))
    assert "did not call" in lever.list_refusals(Training([], []))["width"]
    assert api.knob("width", 4) == 4
    assert lever.observe(Training([], [])) == {"width": 4}
    assert set(lever.list_refusals(Training([], []))) == {"asked"}
    lever.switch({"width": 8}, Training([], []))
    lever.begin_timing()
    assert "did not call" in lever.prove().not_consumed["width"]
    assert api.knob("width", 4) == 8
    assert lever.prove().consumed["width"] == 'fleet_advisor.knob("width") answered 8, 1 times.'
    lever.switch({}, Training([], []))
    assert api.knob("width", 4) == 4


def test_a_default_of_the_scripts_that_is_none_of_the_values_is_refused(api: ModuleType) -> None:
    api.knob("width", 5)
    assert "own value is 5" in OwnKnobs(ABOUT).list_refusals(Training([], []))["width"]


def test_what_stands_since_the_launch_is_proved_by_its_place_or_by_being_asked(api: ModuleType) -> None:
    lever = OwnKnobs(ABOUT)
    assert "--micro in the command" in lever.prove_launched("micro", 2).consumed["micro"]
    assert "did not call fleet_advisor.knob" in lever.prove_launched("asked", 1).not_consumed["asked"]
    api.knob("asked", 1)
    assert "answered 1" in lever.prove_launched("asked", 1).consumed["asked"]
    lever.observe(Training([object()], []))
    told = lever.prove_launched("micro", "fsdp").consumed["micro"]
    assert told.endswith("The model trains under DistributedDataParallel.")


def test_the_registry_leaves_the_proof_of_own_knobs_to_their_lever() -> None:
    registry = load("registry")
    levers = registry.Levers(
        0, 1, 1, registry.torch.device("cpu"), None, {"micro": 2}, registry.Reading(), None, ABOUT
    )
    levers.switch({"micro": 2}, Training([], []))
    evidence = levers.prove("gloo", [])
    assert "since the launch" in evidence.consumed["micro"]
    assert not evidence.not_consumed
