"""A pooler before PostgreSQL that may have another process run each transaction, as PgBouncer may."""

import logging
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
from sqlalchemy import make_url, text

from advisor.storage import Database


class Pooler:
    """Stands between a client and PostgreSQL, and passes everything on but the process's number.

    So does a pooler: the number (that a query is cancelled with) is one of its own.
    """

    def __init__(self, behind: str) -> None:
        """`behind` is the URL of a database of a PostgreSQL with a socket."""
        url = make_url(behind)
        self.behind = f"{url.query['host']}/.s.PGSQL.5432"
        self.authenticator = socket.create_server(("127.0.0.1", 0))
        port = self.authenticator.getsockname()[1]
        self.url = f"postgresql+psycopg://postgres@127.0.0.1:{port}/{url.database}?sslmode=disable&gssencmode=disable"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        self.authenticator.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self.authenticator.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.behind)
            threading.Thread(target=self._pass_on, args=(client, server), daemon=True).start()
            threading.Thread(target=self._pass_back, args=(server, client), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        sink.close()

    def _pass_back(self, source: socket.socket, sink: socket.socket) -> None:
        stream = source.makefile("rb")
        while head := stream.read(5):
            kind, length = struct.unpack("!ci", head)
            body = stream.read(length - 4)
            if kind == b"K":
                body = b"\0" * 4 + body[4:]
            sink.sendall(head + body)
        sink.close()


@pytest.fixture
def pooler(postgres_url: str) -> Iterator[Pooler]:
    """A pooler before an empty database."""
    pooler = Pooler(postgres_url)
    yield pooler
    pooler.close()


def test_pooler_is_told_of_since_no_second_server_is_refused_behind_it(
    pooler: Pooler, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(pooler.url, lambda: "unused")
    with caplog.at_level(logging.WARNING):
        database.hold()
        database.begin_serving(10)
    (record,) = caplog.records
    assert "A pooler stands before PostgreSQL" in record.message
    assert database.keep_hold()
    database.close()


@pytest.mark.parametrize("is_pooled", [True, False])
def test_nothing_is_kept_on_a_connection_that_a_pooler_hands_on(
    pooler: Pooler, postgres_url: str, is_pooled: bool
) -> None:
    database = Database(pooler.url if is_pooled else postgres_url, lambda: "unused")
    database.migrate()
    for _ in range(10):
        with database.read() as work:
            work.jobs.without_session()
    with database.begin() as work:
        kept = work.connection.execute(text("SELECT count(*) FROM pg_prepared_statements")).scalar_one()
        limit = work.connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
        # As it would be for the next one whom the pooler gives this process.
        work.connection.execute(text("COMMIT"))
        after = work.connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
    assert (kept > 0, limit) == (not is_pooled, "15s")
    assert after == ("0" if is_pooled else "15s")
    database.close()
