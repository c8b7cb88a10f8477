"""The user's side of the HTTP API, for notebooks and programs: `Client`, and `AsyncClient` with the same methods.

    from advisor.client import Client

    with Client("https://advisor.example", token) as client:
        job = client.submit_job(spec, idempotency_key="resnet-2026-11")
        for event in client.stream_events(job.id):
            print(event.sentence)
        print(client.advice(job.id).headline)

Whatever the server or the network cannot do for a moment is tried again. Not the agents' messages: those are in
`agent.client`.
"""

from advisor.client.answers import ApiProblem, ExportedFile, ServerUnreachable
from advisor.client.clients import AsyncClient, Client

__all__ = ["ApiProblem", "AsyncClient", "Client", "ExportedFile", "ServerUnreachable"]
