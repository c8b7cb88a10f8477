"""Somebody who is told: a real HTTP server that remembers what was posted and answers as it is told to."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """What was posted, and what is answered: the first answers one after the other, then 204."""

    port: int
    answers: list[int] = field(default_factory=list)
    location: str = ""
    """Where an answer of 3xx leads."""
    posted: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    hold: threading.Event | None = None
    """While it is not set nothing is answered."""

    @property
    def url(self) -> str:
        """A webhook of this receiver with a secret in its path."""
        return f"http://127.0.0.1:{self.port}/hooks/secret-path"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """What was posted, read."""
        return [json.loads(body) for _, body in self.posted]


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Listen on a free port of this machine."""

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.posted.append((dict(self.headers.items()), body))
            if receiver.hold is not None:
                receiver.hold.wait(30)
            self.send_response(receiver.answers.pop(0) if receiver.answers else 204)
            if receiver.location:
                self.send_header("Location", receiver.location)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    server.daemon_threads = True
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver = Receiver(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        if receiver.hold is not None:
            receiver.hold.set()
        server.shutdown()
        server.server_close()
        thread.join()
