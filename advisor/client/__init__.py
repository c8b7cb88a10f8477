"""The user's side of the HTTP API, for notebooks and programs.

    from advisor.client import Client

    with Client("https://advisor.example", token) as client:
        job = client.submit_job(spec, idempotency_key="resnet-2026-11")
        for event in client.stream_events(job.id):
            print(event.sentence)
        print(client.advice(job.id).headline)

Whatever the server or the network cannot do for a moment is tried again. Not the agents' messages: those are in
`agent.client`.
"""

from typing import TYPE_CHECKING, Any

from advisor.client.answers import ApiProblem, ExportedFile, ServerUnreachable

if TYPE_CHECKING:
    from advisor.client.clients import Client
    from advisor.client.racing import RaceFailed, race

__all__ = [
    "ApiProblem",
    "Client",
    "ExportedFile",
    "RaceFailed",
    "ServerUnreachable",
    "race",
]


def __getattr__(name: str) -> Any:
    # They load every model there is: what asks for plain JSON, or knows the errors only, does without.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from advisor.client import clients, racing

    return getattr(racing if name in {"race", "RaceFailed"} else clients, name)
