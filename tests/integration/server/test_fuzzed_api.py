"""Requests that schemathesis makes up from the OpenAPI document, with every kind of token: no 5xx, no surprises.

`SCHEMATHESIS_CASES=20000` (`make fuzz`) makes up that many, each time others; without it they are always the same.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, CheckContext, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from advisor.app import create_app
from advisor.settings import Settings
from tests.integration.server.served import FakeAgent, Served
from tests.integration.server.stage import Stage

WANTED = os.environ.get("SCHEMATHESIS_CASES")
DOCUMENT = create_app(Settings(data_dir=Path("unused"))).openapi()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
SCHEMA.config.generation.update(with_security_parameters=False)
OPERATIONS = {found.ok().label: found.ok() for found in SCHEMA.get_all_operations()}
CASES = 500
"""With every change, and always the same ones; `make fuzz` sends twenty times as many, each time others."""


def takes_text(schema: dict[str, Any]) -> bool:
    """Whether a parameter, or each of its items, may be any text."""
    forms = [schema, schema.get("items", {}), *schema.get("anyOf", ())]
    return any(form.get("type") == "string" and not {"enum", "format"} & form.keys() for form in forms)


def refuses_what_breaks_the_schema(context: CheckContext, response: Response, case: Case) -> bool | None:
    """In an address all is text: what was made up as a number for one that takes text arrives as its text."""
    told = case.operation.definition.raw.get("parameters", ())
    texts = {one["name"] for one in told if one["in"] == "query" and takes_text(one["schema"])}
    arrives_as_text = any(not isinstance((case.query or {}).get(name, ""), str) for name in texts)
    return None if arrives_as_text else negative_data_rejection(context, response, case)


CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    refuses_what_breaks_the_schema,
]


def list_ids(stage: Stage) -> dict[str, str]:
    """What stands for each name in a path, so that requests meet something that exists."""
    assert stage.agent.place is not None
    return {
        "job_id": stage.job.id,
        "agent_id": stage.agent.id,
        "session_id": stage.agent.place.session_id,
        "race_id": stage.race_id,
        "run_id": "0123456789abcdef",
        "token_id": stage.server.token("viewer").split("_")[2],
    }


def list_tokens(stage: Stage, label: str) -> list[str]:
    """A token of every kind, and none; as often as all others together the one that opens the operation."""
    server = stage.server
    expired, revoked = server.token("admin", expires_s=0.001), server.token("admin")
    server.ask("DELETE", f"/tokens/{revoked.split('_')[2]}")
    people = [server.admin, server.token("viewer"), server.token("submitter")]
    agents = [stage.agent.token, FakeAgent(server, "two").token, server.enrolment]
    others = [*people, *agents, expired, revoked, "adv_x", ""]
    of_agents = "/sessions/" in label or label.endswith("/poll")
    right = server.enrolment if label == "POST /api/v1/agents" else agents[0] if of_agents else server.admin
    return [right] * len(others) + others


def count_cases(operation: Any) -> int:
    """This operation's share of all cases: bodies hold the most that can be wrong, and some requests have one form."""
    weights = {label: weigh(one) for label, one in OPERATIONS.items()}
    return math.ceil(int(WANTED or CASES) * weights[operation.label] / sum(weights.values()))


def weigh(operation: Any) -> int:
    """How much there is to try, roughly."""
    return 20 * bool(operation.body) + 4 * len(list(operation.iter_parameters())) + 1


def make_cases(operation: Any, ids: dict[str, str]) -> st.SearchStrategy[Case]:
    """Requests that keep to the document and requests that do not, about what exists and what does not."""
    named = {name: ids[name] for name in ids if f"{{{name}}}" in operation.path}
    makers = [operation.as_strategy(generation_mode=mode) for mode in GenerationMode]
    if named:
        makers += [
            operation.as_strategy(generation_mode=mode, path_parameters=named) for mode in GenerationMode
        ]
    return st.one_of(makers)


@pytest.mark.filterwarnings("ignore::hypothesis.errors.NonInteractiveExampleWarning")
@pytest.mark.parametrize("label", OPERATIONS)
def test_made_up_request_is_answered_as_the_document_says(start: Callable[..., Served], label: str) -> None:
    # What is refused for its pace would not be looked at.
    stage = Stage(start(poll_s=0.02, stream_s=0.05, most_requests_at_once=10**9))
    operation, tokens = OPERATIONS[label], list_tokens(stage, label)

    @settings(
        max_examples=count_cases(operation),
        derandomize=WANTED is None,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, *([Phase.shrink] if WANTED else [])],
    )
    @given(case=make_cases(operation, list_ids(stage)), token=st.sampled_from(tokens))
    def ask(case: Case, token: str) -> None:
        case.headers["Authorization"] = f"Bearer {token}"
        wanted = case.as_transport_kwargs(base_url="http://localhost")
        request = requests.Request(**wanted).prepare()
        reply = stage.server.http.request(
            request.method, request.url, headers=dict(request.headers), content=request.body
        )
        case.validate_response(reply, checks=CHECKS)

    ask()
