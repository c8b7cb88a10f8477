"""The server of local mode: the one that runs on the data directory already, or a new one on a free port."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from advisor.local.process import PYTHON, LocalProcess, ProcessDied
from advisor.local.record import free_port, running_server, starting_turn

_START_S = 90.0
_STOP_S = 15.0
_POLL_S = 0.02
_TURN_S = 60.0


class LocalModeFailed(Exception):
    """Local mode could not start or lost one of its processes; `hint` says what to do."""

    def __init__(self, sentence: str, hint: str, log_tail: str = "") -> None:
        super().__init__(sentence)
        self.hint = hint
        self.log_tail = log_tail


@dataclass(frozen=True)
class LocalServer:
    """A server on this machine that answers."""

    url: str
    token: str
    """An administrator's token, from the data directory."""
    agent_token_file: Path
    started_here: bool
    """Whether it stops with this command; False when it ran already."""
    check: Callable[[], None]
    """Raises `LocalModeFailed` when it runs no more."""


class StartingServer:
    """A server of this machine that runs already, or is about to: what needs only its address need not wait."""

    def __init__(
        self,
        url: str,
        data_dir: Path,
        process: LocalProcess | None,
        tell: Callable[[str], None],
        share: Callable[[], None],
    ) -> None:
        """`process` is the one that was started here, and `share` lets others use it; None for a server that ran."""
        self.url = url
        self.agent_token_file = data_dir / "agent-token"
        """Written by a server's first start on a data directory."""
        self._data_dir = data_dir
        self._process = process
        self._tell, self._share = tell, share

    def await_ready(self) -> LocalServer:
        """Return the server once it answers. Raises `LocalModeFailed` with the end of its log when it does not."""
        process = self._process
        if process is None:
            return self._connect(started_here=False, check=lambda: _check_record(self._data_dir))
        _await_ready(self.url, process)
        self._share()
        self._tell(f"Started a server for this machine: {self.url}")
        return self._connect(started_here=True, check=lambda: _check_process(process))

    def _connect(self, started_here: bool, check: Callable[[], None]) -> LocalServer:
        try:
            token = (self._data_dir / "admin-token").read_text().strip()
        except OSError as error:
            raise LocalModeFailed(
                f"The server's administrator token cannot be read: {error}.",
                "The server writes it on its first start on a data directory. Run this as the same user, or set "
                "ADVISOR_URL and ADVISOR_TOKEN.",
            ) from error
        return LocalServer(self.url, token, self.agent_token_file, started_here, check)


@contextmanager
def starting_server(
    data_dir: Path, environment: Mapping[str, str], tell: Callable[[str], None], *, alone: bool = False
) -> Iterator[StartingServer]:
    """Start a server on `data_dir`, unless one runs there, without waiting for it; stop it when the context ends.

    `alone`: other commands wait until it has stopped, since they would be cut off. Raises `LocalModeFailed` when
    another command makes this one wait for long.
    """
    with ExitStack() as stack:
        try:
            end_turn = stack.enter_context(starting_turn(data_dir, _TURN_S))
        except TimeoutError:
            raise LocalModeFailed(
                f"Another advisor command has been looking something up in {data_dir} for {_TURN_S:.0f} s.",
                "End it (`advisor logs --follow` waits until it is interrupted), then run the same command again.",
            ) from None
        yield stack.enter_context(_start(data_dir, environment, tell, end_turn, alone))


@contextmanager
def _start(
    data_dir: Path,
    environment: Mapping[str, str],
    tell: Callable[[str], None],
    end_turn: Callable[[], None],
    alone: bool,
) -> Iterator[StartingServer]:
    if (record := running_server(data_dir)) is not None:
        end_turn()
        tell(f"Using the server that runs at {record.url} (process {record.pid}).")
        yield StartingServer(record.url, data_dir, None, tell, end_turn)
        return
    port = free_port()
    options = ("--host", "127.0.0.1", "--port", str(port), "--data-dir", str(data_dir))
    process = LocalProcess(
        "local server",
        [*PYTHON, "-m", "advisor", "serve", *options],
        data_dir / "logs" / "server.log",
        server_environment(environment),
    )
    try:
        share = _keep_to_oneself if alone else end_turn
        yield StartingServer(f"http://127.0.0.1:{port}", data_dir, process, tell, share)
    finally:
        process.stop(_STOP_S)


@contextmanager
def local_server(
    data_dir: Path, environment: Mapping[str, str], tell: Callable[[str], None], *, alone: bool = False
) -> Iterator[LocalServer]:
    """Offer a server on `data_dir` for as long as the context lasts.

    Raises `LocalModeFailed` with the end of its log when it does not come up.
    """
    with starting_server(data_dir, environment, tell, alone=alone) as starting:
        yield starting.await_ready()


def _keep_to_oneself() -> None:
    """The turn lasts as long as the server."""


def server_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a server of this machine: the user's, without the certificate of another one.

    It serves a single job, beside the training: it needs no process that plans.
    """
    others = {"ADVISOR_TLS_CERTIFICATE", "ADVISOR_TLS_KEY"}
    kept = {name: value for name, value in environment.items() if name not in others}
    return {"ADVISOR_PLANNER_PROCESSES": "0"} | kept


def failure_of(died: ProcessDied, hint: str) -> LocalModeFailed:
    """Tell of a process that ended although it was needed, with the end of its log."""
    return LocalModeFailed(str(died), f"{hint} Its log is {died.log_path}.", died.log_tail)


def _await_ready(url: str, process: LocalProcess) -> None:
    # Loaded while the server starts.
    from advisor.client import Client

    deadline = time.monotonic() + _START_S
    with Client(url, token=None, patience_s=0) as client:
        while not client.is_ready():
            _check_process(process)
            if time.monotonic() > deadline:
                raise LocalModeFailed(
                    f"The local server did not become ready within {_START_S:.0f} s.",
                    f"Its log is {process.log_path}.",
                    process.log_tail(),
                )
            time.sleep(_POLL_S)


def _check_process(process: LocalProcess) -> None:
    try:
        process.check()
    except ProcessDied as died:
        raise failure_of(
            died, "Run `advisor doctor`, then the same command again: nothing is lost."
        ) from died


def _check_record(data_dir: Path) -> None:
    if running_server(data_dir) is None:
        raise LocalModeFailed(
            "The server that this command was using has stopped.",
            "Run the same command again: it starts a server of its own and resumes the job.",
        )
