"""One session on this node, from its assignment to the word that every rank is gone."""

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from advisor.protocol.messages import (
    AgentRegistered,
    Assignment,
    BlockReport,
    HelloReport,
    MemberState,
    NextReply,
    NextRequest,
    SessionEnd,
    Trouble,
)
from advisor.protocol.trials import BlockResult, Outcome
from agent import outcome
from agent.backends.pytorch import Launch, SessionPlace, build_launch
from agent.client import ServerClient
from agent.control import ControlSocket, Hello, ScriptEnded
from agent.errors import AgentError, ServerRefused, ServerUnreachable, StaleSession, Unlaunchable
from agent.isolation import Isolation, Protection, list_argument_directories, plan_protection
from agent.launcher import LaunchedSession
from agent.nvml import Gpus
from agent.outcome import Cause, Ending, Evidence, Judgement
from agent.progress import Progress
from agent.rendezvous import find_advertised_address, offer_rendezvous
from agent.renewal import News, Renewal
from agent.session_log import LogReader, clean_text, read_log_tail
from agent.settings import AgentSettings
from agent.shim import Order
from agent.spool import Spool, SpooledReport
from agent.telemetry import Sampler

_GUARD_PERIOD_S = 0.1
_KILL_TIMEOUT_S = 10.0
_JUDGED_LOG_CHARACTERS = 200_000
_SENT_LOG_CHARACTERS = 16_000

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class NodeContext:
    """What every session of this agent shares."""

    settings: AgentSettings
    client: ServerClient
    registered: AgentRegistered
    spool: Spool
    isolation: Isolation | None
    """None when the operator switched protection off."""
    gpus: Gpus
    agent_marker: str
    environment: Mapping[str, str]
    """The agent's own environment."""
    stopping: threading.Event
    """Set when the agent is asked to stop."""
    clock: Callable[[], float]
    """Seconds that also count while the machine sleeps."""


def name_session_dir(assignment: Assignment) -> str:
    """Return the name of a session's folder; a later generation is another launch, with a folder of its own."""
    return re.sub(r"[^\w-]", "_", f"{assignment.session_id}-{assignment.generation}")


class SessionRun:
    """Holds a place in a gang. `run` returns when every rank is gone and the server knows it, or will not listen."""

    def __init__(self, assignment: Assignment, context: NodeContext, session_dir: Path) -> None:
        """`session_dir` exists and is empty but for the agent's own mark."""
        self._assignment, self._context, self._session_dir = assignment, context, session_dir
        self._ending: Ending | None = None
        self._ending_set = threading.Event()
        self._total_steps = 0
        self._warnings: list[str] = []
        self._log = LogReader(session_dir)
        self._progress = Progress(session_dir, assignment.hang_timeout_s, context.clock)
        self._launched: LaunchedSession | None = None
        self._resisting: list[int] = []
        """Processes that could not be killed."""
        self._sampler = Sampler(context.gpus, lambda: self._launched.root_pid if self._launched else None)
        self._control = ControlSocket(self)
        self._place = SessionPlace(
            session_dir=session_dir,
            control=self._control.path,
            agent_marker=context.agent_marker,
            session_marker=name_session_dir(assignment),
            runtime_script=context.settings.runtime_script,
        )

    def run(self) -> SessionEnd:
        """Hold the place to its end; return what the server was told."""
        kills_before = outcome.read_kernel_oom_kills()
        renewal: Renewal | None = None
        try:
            rendezvous = self._offer_rendezvous()
            # A rehearsal: what cannot be launched is said before the gang waits for it.
            self._build_launch(rendezvous or "127.0.0.1:1")
            renewal = self._start_renewal(rendezvous)
            ending = self._await_gang(renewal) or self._launch_and_guard(renewal)
        except Unlaunchable as error:
            ending = Ending(Cause.UNLAUNCHABLE, str(error))
        finally:
            self._control.close()
            self._sampler.stop()
        judgement = outcome.judge(ending, self._gather_evidence(kills_before))
        if renewal is not None:
            judgement = self._reconsider(ending, judgement, renewal)
            renewal.stop()
        return self._report(judgement)

    # The steps of `run`.

    def _offer_rendezvous(self) -> str | None:
        """Only node 0 offers one; a gang of one stays on this machine."""
        if self._assignment.node_rank != 0:
            return None
        settings = self._context.settings
        if self._assignment.nnodes == 1:
            return offer_rendezvous("127.0.0.1")
        return offer_rendezvous(settings.advertise_address or find_advertised_address(settings.server_url))

    def _build_launch(self, rendezvous: str) -> Launch:
        launch = build_launch(self._assignment, rendezvous, self._place, self._context.environment)
        roots = self._context.settings.allow_roots
        if roots and not any(launch.working_dir.resolve().is_relative_to(root.resolve()) for root in roots):
            raise Unlaunchable(
                f"This agent starts jobs only in {', '.join(map(str, roots))}, not in {launch.working_dir}. Its "
                "operator can allow more with --allow-root."
            )
        return launch

    def _start_renewal(self, rendezvous: str | None) -> Renewal:
        renewal = Renewal(
            self._context.client,
            self._assignment.session_id,
            self._assignment.generation,
            beat_s=self._context.registered.beat_s,
            collect=self._collect_news,
            clock=self._context.clock,
            rendezvous=rendezvous,
        )
        renewal.start()
        return renewal

    def _await_gang(self, renewal: Renewal) -> Ending | None:
        """Wait until every agent of the gang is ready; an ending when it does not come to that."""
        while renewal.reply is None or renewal.reply.rendezvous is None:
            ending = self._check_lease(renewal)
            if ending is not None:
                return ending
            self._context.stopping.wait(_GUARD_PERIOD_S)
        return self._check_lease(renewal)

    def _launch_and_guard(self, renewal: Renewal) -> Ending:
        assert renewal.reply is not None  # _await_gang waited for it
        launch = self._build_launch(renewal.reply.rendezvous or "")
        protection = self._protect(launch)
        self._warnings += [*launch.warnings, *protection.warnings]
        renewal.state = MemberState.RUNNING
        order = Order(
            argv=launch.argv,
            environment=launch.environment,
            working_dir=str(launch.working_dir),
            log_folder=str(self._session_dir),
            mount_plan=protection.plan,
        )
        log.info("Launching.", session=self._assignment.session_id, command=" ".join(launch.argv))
        try:
            with LaunchedSession(
                order, self._context.agent_marker, self._place.session_marker, self._warnings.append
            ) as launched:
                self._launched = launched
                self._sampler.start()
                ending = self._guard(launched, renewal)
                if ending.cause in {Cause.INSTRUCTED, Cause.SCRIPT_ENDED}:
                    launched.wait_exit(self._context.settings.end_grace_s)
                self._resisting = launched.kill(_KILL_TIMEOUT_S)
        finally:
            protection.remove_scratch()
        self._progress.update()
        return ending

    def _protect(self, launch: Launch) -> Protection:
        isolation = self._context.isolation
        if isolation is None:
            return Protection.none()
        protected = self._assignment.workload.protect
        directories = [launch.working_dir, *(launch.working_dir / name for name in protected)]
        if launch.script is not None:
            directories.append(launch.script.parent)
        directories += list_argument_directories(launch.script_arguments, launch.working_dir, Path.home())
        return plan_protection(
            isolation,
            directories,
            keep=(self._session_dir.resolve(), self._control.folder.resolve()),
            owner=self._context.agent_marker,
        )

    def _guard(self, launched: LaunchedSession, renewal: Renewal) -> Ending:
        """Watch until the session is to end, or did."""
        started_s = self._context.clock()
        while True:
            ending = self._ending or self._check_lease(renewal) or self._check_ranks(started_s)
            if ending is not None:
                return ending
            if launched.has_exited():
                # What the runtime said last explains the exit better than the exit itself.
                self._control.wait_silent(timeout_s=5.0)
                return self._ending or Ending(Cause.EXITED)
            self._ending_set.wait(_GUARD_PERIOD_S)

    def _check_lease(self, renewal: Renewal) -> Ending | None:
        if self._context.stopping.is_set():
            return Ending(Cause.AGENT_STOPPED, f"The agent {self._context.settings.name} was stopped.")
        if renewal.is_over:
            return Ending(Cause.SERVER_ENDED, renewal.over_because)
        fence_s = self._context.registered.fence_s
        if renewal.silent_for_s > fence_s:
            return Ending(
                Cause.FENCED,
                f"The server acknowledged nothing for {fence_s:.0f} s, so the agent {self._context.settings.name} "
                "ended its ranks: the gang may belong to another session by now. Check the network between the two.",
            )
        return None

    def _check_ranks(self, started_s: float) -> Ending | None:
        self._progress.update()
        age_s = self._context.clock() - started_s
        startup_s = self._context.settings.startup_timeout_s
        if not self._progress.has_begun() and age_s > startup_s:
            return Ending(
                Cause.NEVER_BEGAN,
                f"Not every rank of this node made a step within {startup_s:.0f} s from the launch. If loading really "
                "takes that long, raise the agent's --startup-timeout.",
            )
        if age_s > self._assignment.session_timeout_s:
            limit_s = self._assignment.session_timeout_s
            return Ending(Cause.EXPIRED, f"The session reached its longest life of {limit_s:.0f} s.")
        hang = self._progress.find_hang(self._control.instruction_pending)
        return Ending(Cause.HUNG, hang.sentence) if hang else None

    def _gather_evidence(self, kills_before: int) -> Evidence:
        launched = self._launched
        return Evidence(
            log_text=read_log_tail(self._session_dir, _JUDGED_LOG_CHARACTERS),
            exit_code=launched.exit_code if launched else None,
            steps=self._progress.count_steps() or 0,
            launched_as_is=not self._assignment.cold,
            nnodes=self._assignment.nnodes,
            node_rank=self._assignment.node_rank,
            kernel_oom_kills=outcome.read_kernel_oom_kills() - kills_before,
        )

    def _reconsider(self, ending: Ending, judgement: Judgement, renewal: Renewal) -> Judgement:
        """Send the last news. Ranks that left because the server had ended the session did not fail."""
        if ending.cause is not Cause.FENCED:
            renewal.beat_now()
        if renewal.is_over and ending.cause is Cause.EXITED and judgement.is_consequence:
            return Judgement(Outcome.FINISHED, renewal.over_because)
        return judgement

    def _report(self, judgement: Judgement) -> SessionEnd:
        reason = judgement.reason
        if self._resisting:
            reason += (
                f" Processes {self._resisting} do not die: look at this node's dmesg before using it again."
            )
        ending = SessionEnd(
            generation=self._assignment.generation,
            outcome=judgement.outcome,
            reason=reason,
            log_tail=read_log_tail(self._session_dir, _SENT_LOG_CHARACTERS),
            trouble=judgement.trouble,
            total_steps=self._total_steps,
        )
        log.info(
            "Session over.", session=self._assignment.session_id, outcome=ending.outcome, reason=ending.reason
        )
        patience_s = 5.0 if self._context.stopping.is_set() else 2 * self._context.registered.lease_s
        deadline_s = self._context.clock() + patience_s
        try:
            self._context.client.end(
                self._assignment.session_id, ending, lambda: self._context.clock() > deadline_s
            )
        except AgentError as error:
            # The lease runs out by itself: a report that comes too late changes nothing.
            log.warning("The session's end was not taken.", error=str(error))
        return ending

    def _collect_news(self, most_characters: int) -> News:
        notes = "".join(f"[advisor] {self._warnings.pop(0)}\n" for _ in range(len(self._warnings)))
        text = clean_text(notes.encode()) + self._log.read_news(most_characters)
        return News(self._progress.count_steps(), self._sampler.drain(), text)

    # What rank 0's runtime says, in the control socket's thread.

    def greet(self, hello: Hello) -> NextReply:
        """Pass the first words on, and ask what comes first."""
        report = HelloReport(
            generation=self._assignment.generation,
            facts=hello.facts,
            baseline=hello.baseline,
            refusals=hello.refusals,
        )
        try:
            self._context.client.hello(self._assignment.session_id, report, self._is_ending)
            return self._ask_next()
        except AgentError as error:
            return self._give_up(error)

    def take_block(self, block_id: str, result: BlockResult) -> NextReply:
        """Write the block down, hand it in, and ask what comes next."""
        report = BlockReport(generation=self._assignment.generation, result=result)
        entry = self._context.spool.put(
            SpooledReport(
                session_id=self._assignment.session_id, block_id=block_id, body=report.model_dump_json()
            )
        )
        try:
            try:
                self._context.client.report_block(
                    entry.report.session_id, block_id, entry.report.body.encode(), self._is_ending
                )
            except ServerUnreachable:
                raise  # it stays in the spool, and is handed in later
            except ServerRefused:
                self._context.spool.remove(entry)
                raise
            self._context.spool.remove(entry)
            if result.script_ended:
                self.take_ending(ScriptEnded(self._progress.count_steps() or 0))
                return NextReply(end_because="The script ended by itself.")
            return self._ask_next()
        except AgentError as error:
            return self._give_up(error)

    def take_trouble(self, trouble: Trouble) -> None:
        """Remember that the script cannot be measured: it ends the session."""
        self._end(Ending(Cause.TROUBLE, trouble.sentence, trouble))

    def take_ending(self, ending: ScriptEnded) -> None:
        """Remember that the script ended by itself."""
        self._total_steps = ending.steps
        self._end(Ending(Cause.SCRIPT_ENDED, f"The script ended by itself after {ending.steps} steps."))

    def take_nonsense(self, sentence: str) -> None:
        """Remember that runtime and agent do not understand each other: it ends the session."""
        self._end(Ending(Cause.NONSENSE, sentence))

    def _ask_next(self) -> NextReply:
        request = NextRequest(generation=self._assignment.generation)
        reply = self._context.client.next_plan(self._assignment.session_id, request, self._is_ending)
        if reply.plan is None:
            self._end(Ending(Cause.INSTRUCTED, reply.end_because))
        return reply

    def _give_up(self, error: AgentError) -> NextReply:
        cause = Cause.NONSENSE
        if isinstance(error, StaleSession):
            cause = Cause.SERVER_ENDED
        elif isinstance(error, ServerUnreachable):
            cause = Cause.FENCED
        self._end(Ending(cause, str(error)))
        return NextReply(end_because=str(error))

    def _end(self, ending: Ending) -> None:
        """The first ending counts."""
        if self._ending is None:
            self._ending = ending
            self._ending_set.set()

    def _is_ending(self) -> bool:
        return self._ending is not None or self._context.stopping.is_set() or self._is_past_guard()

    def _is_past_guard(self) -> bool:
        return self._launched is not None and self._launched.has_exited()
