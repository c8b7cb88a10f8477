"""The agent's life: register, poll, hold a place in a gang, again. It survives restarts of the server and its own."""

import fcntl
import queue
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO, TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from advisor.data_dir import NotPrivate, make_private
from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.measured.messages import (
    LAUNCH_FAILED,
    AgentRegistered,
    Assignment,
    Place,
    RegisterAgent,
    SessionEnd,
    Trouble,
)
from advisor.protocol.measured.trials import Outcome
from advisor.protocol.nodes.cluster import Node
from advisor.protocol.reading import Unreadable, read_document
from agent.client import ServerClient
from agent.devices.gpus import Gpus
from agent.devices.hardware import describe_node
from agent.errors import (
    AgentError,
    BadConfiguration,
    NotSigned,
    NotTheServer,
    NotWelcome,
    ServerRefused,
    UnknownAssignment,
    WorkDirInUse,
)
from agent.guard.account import find_account
from agent.guard.blind_spot import find_blind_spot
from agent.guard.isolation import (
    Isolation,
    JobLayers,
    detect_isolation,
    list_scratch_roots,
    remove_leftover_scratch,
)
from agent.guard.launcher import sweep_leftovers
from agent.guard.rank_folder import choose_temporary, remove_leftover_folders
from agent.sessions.delivery import Delivery
from agent.sessions.preparation import NodeContext
from agent.sessions.session import SessionRun, name_session_dir
from agent.sessions.spool import Spool
from agent.sessions.starting import Starts
from agent.settings import AgentSettings
from agent.trust.secrets import read_node_secret, replace_file
from agent.trust.signatures import TrustedSigners

_SESSIONS_KEPT = 5
"""Folders of ended sessions that stay, so that their logs can be read."""
_PAUSE_AFTER_REFUSAL_S = 2.0
_PREDECESSOR_S = 20.0
"""Longest wait for an agent of before that still holds the work directory."""
_STOP_CHECK_S = 0.2
_LET_GO = (
    "The server no longer accepts this agent, which ends here: its token was revoked, another agent registered under "
    "its name, or the server has another release or database. If it is to come back, start it again with a valid token "
    "to register with."
)
_UNKNOWN_AGENT = "agent_not_found"
"""What a server says that has another database than the one this agent registered with."""
_MARK = "assignment.json"
"""In a session's folder while the server does not know that it ended."""

Answer = TypeVar("Answer")

log = structlog.get_logger(__name__)


class _Stopped(Exception):
    """The agent was asked to stop while it waited for the server."""


def read_boottime() -> float:
    """Return seconds that also count while the machine sleeps: a lease does not sleep along."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Agent:
    """One agent on one node."""

    def __init__(
        self,
        settings: AgentSettings,
        client: ServerClient,
        gpus: Gpus,
        environment: Mapping[str, str],
        *,
        clock: Callable[[], float] = read_boottime,
    ) -> None:
        """`environment` is what training processes inherit, without secrets.

        Raises BadConfiguration when scripts cannot run as the user that the settings name, or the keys of those who
        may sign jobs cannot be used.
        """
        self._settings, self._client, self._gpus = settings, client, gpus
        self._environment, self._clock = environment, clock
        self._account = find_account(settings.run_as) if settings.run_as else None
        self._ends_s = None if settings.ends_in_s is None else clock() + settings.ends_in_s
        self._signers = (
            TrustedSigners(settings.require_signed, settings.work_dir) if settings.require_signed else None
        )
        self._stopping = threading.Event()
        self._layers = JobLayers()
        self._starts = Starts()
        self._sessions_dir = settings.work_dir / "sessions"
        self._delivery = Delivery(client, Spool(settings.work_dir), clock)

    def stop(self) -> None:
        """Ask the agent to kill its ranks, tell the server and return; from a signal handler or another thread."""
        self._stopping.set()

    def run(self, await_word: Callable[[], bool] = lambda: True) -> None:
        """Serve until stopped; raises NotWelcome or WorkDirInUse when there is no point in trying.

        `await_word` is called when everything is prepared, and returns whether to go on and register.
        """
        with _lock_work_dir(self._settings.work_dir):
            marker = _read_identity(self._settings)
            sweep_leftovers(marker)
            remove_leftover_folders(marker)
            isolation = self._prepare_isolation(marker)
            if self._account and (blind_spot := find_blind_spot(self._account)):
                log.warning(blind_spot)
            node = self._describe_node()
            if not await_word():
                return
            try:
                self._serve(marker, isolation, node)
            except _Stopped:
                log.info("Stopped.")
            finally:
                self._layers.remove()

    def _prepare_isolation(self, marker: str) -> Isolation | None:
        if not self._settings.isolate:
            return None
        roots = list_scratch_roots(self._settings.work_dir)
        roots[0].mkdir(exist_ok=True)
        remove_leftover_scratch(roots, marker)
        isolation = detect_isolation(roots)
        if not isolation.works:
            log.warning(isolation.because)
        return isolation

    def _serve(self, marker: str, isolation: Isolation | None, node: Node) -> None:
        registered = self._register(node)
        self._settle_leftovers()
        while not self._stopping.is_set():
            self._delivery.hand_in_waiting()
            try:
                assignment = self._poll(registered)
            except NotWelcome as error:
                # A revoked token stays revoked: its administrator does not want this agent back by itself.
                raise NotWelcome(error.status, error.code, _LET_GO, f"It said: {error}") from error
            except UnknownAssignment as error:
                self._decline(error.session_id, error.generation, LAUNCH_FAILED, str(error))
                continue
            except (ServerRefused, NotTheServer) as error:
                self._stopping.wait(_PAUSE_AFTER_REFUSAL_S)
                if isinstance(error, ServerRefused) and error.code == _UNKNOWN_AGENT:
                    log.warning("The server does not know this agent; registering again.", error=str(error))
                    registered = self._register(self._describe_node())
                else:
                    log.warning("A request for work was refused on the way; trying again.", error=str(error))
                continue
            if assignment is not None:
                self._run_session(assignment, self._make_context(registered, marker, isolation))

    def _describe_node(self) -> Node:
        settings = self._settings
        return describe_node(
            self._gpus,
            settings.testbed,
            pool=settings.pool,
            labels=settings.labels,
            signed_only=self._signers is not None,
        )

    def _register(self, node: Node) -> AgentRegistered:
        secret = read_node_secret(self._settings.work_dir)
        ends_in_s = None if self._ends_s is None else max(0.0, self._ends_s - self._clock())
        message = RegisterAgent(name=self._settings.name, node=node, secret=secret, ends_in_s=ends_in_s)
        registered = self._wait_for(lambda: self._client.register(message, self._stopping.is_set))
        for sentence in node.network:
            log.warning(sentence)
        log.info("Registered.", agent=self._settings.name, server=self._settings.server_url)
        return registered

    def _poll(self, registered: AgentRegistered) -> Assignment | None:
        agent_id, held_s = registered.agent_id, registered.poll_s
        return self._wait_for(lambda: self._client.poll(agent_id, held_s, self._stopping.is_set)).assignment

    def _wait_for(self, call: Callable[[], Answer]) -> Answer:
        """Return what `call` returns; raises _Stopped at once when the agent is stopped meanwhile.

        In a thread, because a signal does not reliably end a read that is held open for many seconds.
        """
        results: queue.SimpleQueue[Answer | Exception] = queue.SimpleQueue()

        def run() -> None:
            try:
                results.put(call())
            except Exception as error:  # a defect too: the thread that waits raises it
                results.put(error)

        threading.Thread(target=run, name="waiting", daemon=True).start()
        while not self._stopping.is_set():
            with suppress(queue.Empty):
                result = results.get(timeout=_STOP_CHECK_S)
                if isinstance(result, Exception):
                    raise result
                return result
        raise _Stopped

    def _make_context(
        self, registered: AgentRegistered, marker: str, isolation: Isolation | None
    ) -> NodeContext:
        return NodeContext(
            settings=self._settings,
            client=self._client,
            registered=registered,
            delivery=self._delivery,
            isolation=isolation,
            gpus=self._gpus,
            account=self._account,
            agent_marker=marker,
            environment=self._environment,
            stopping=self._stopping,
            clock=self._clock,
            layers=self._layers,
            starts=self._starts,
        )

    def _run_session(self, assignment: Assignment, context: NodeContext) -> None:
        signed: JobSpec | None = None
        if self._signers is not None:
            try:
                assignment, signed = self._signers.prove(assignment)
            except NotSigned as error:
                self._decline(assignment.session_id, assignment.generation, "not_signed", str(error))
                return
        folder = self._sessions_dir / name_session_dir(assignment)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
            (folder / _MARK).write_text(assignment.model_dump_json())
            session = SessionRun(assignment, context, folder, signed)
        except OSError as error:
            self._give_back_unprepared(assignment, error)
        else:
            with bound_contextvars(job_id=assignment.job_id, session_id=assignment.session_id):
                session.run()
        finally:
            with suppress(OSError):  # a mark that stays is settled when the agent starts again
                (folder / _MARK).unlink(missing_ok=True)
                self._forget_old_sessions()

    def _settle_leftovers(self) -> None:
        """Tell the server about sessions that an earlier run of this agent did not see to their end."""
        for mark in self._sessions_dir.glob(f"*/{_MARK}"):
            try:
                place = read_document(Place, mark.read_bytes())
                ending = SessionEnd(
                    generation=place.generation,
                    outcome=Outcome.LOST,
                    reason=f"The agent {self._settings.name} was restarted in the middle of the session.",
                )
                self._client.end(place.session_id, ending, self._stopping.is_set)
            except (Unreadable, AgentError) as error:
                log.warning("An unfinished session of before could not be reported.", error=str(error))
            mark.unlink(missing_ok=True)

    def _decline(self, session_id: str, generation: int, code: str, because: str) -> None:
        """Give a place back that this agent does not take: the job ends with the reason, the agent serves on."""
        trouble = Trouble(code=code, sentence=f"{self._settings.name}: {because}")
        self._give_back(
            session_id,
            SessionEnd(generation=generation, outcome=Outcome.CRASHED, reason=because, trouble=trouble),
        )

    def _give_back_unprepared(self, assignment: Assignment, error: OSError) -> None:
        """Give a place back that this node has no room for: the server tries it again, also elsewhere."""
        because = (
            f"The agent {self._settings.name} could not make the session's folders, in {self._sessions_dir} and "
            f"{choose_temporary()} ({error}). Make room there, or let the agent's user write to them."
        )
        self._give_back(
            assignment.session_id,
            SessionEnd(generation=assignment.generation, outcome=Outcome.LOST, reason=because),
        )

    def _give_back(self, session_id: str, ending: SessionEnd) -> None:
        log.error("A session was not begun.", session=session_id, because=ending.reason)
        try:
            self._client.end(session_id, ending, self._stopping.is_set)
        except AgentError as error:
            log.warning("The server did not hear that a session was not begun.", error=str(error))
            self._stopping.wait(_PAUSE_AFTER_REFUSAL_S)

    def _forget_old_sessions(self) -> None:
        folders = sorted(
            self._sessions_dir.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True
        )
        for folder in folders[_SESSIONS_KEPT:]:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _lock_work_dir(work_dir: Path) -> Iterator[None]:
    """Hold the folder for one agent; one that is just ending (its starter was killed) is waited for."""
    try:
        make_private(work_dir)
    except NotPrivate as error:
        raise BadConfiguration(f"{error} {error.hint}") from error
    with open(work_dir / "lock", "a") as file:
        deadline = time.monotonic() + _PREDECESSOR_S
        while not _try_lock(file):
            if time.monotonic() > deadline:
                raise WorkDirInUse(
                    f"Another agent uses {work_dir}. Stop it, or give this one its own with --work-dir or --name."
                )
            time.sleep(0.2)
        yield


def _read_identity(settings: AgentSettings) -> str:
    """Return the marker of this agent's processes: its name, and a random part that no other agent has."""
    path = settings.work_dir / "identity"
    if not path.exists():
        replace_file(path, secrets.token_hex(8))
    return f"{settings.name}-{path.read_text().strip()}"


def _try_lock(file: TextIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
