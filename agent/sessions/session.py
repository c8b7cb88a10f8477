"""One session on this node, from its assignment to the word that every rank is gone."""

import re
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.measured.messages import LIVED_OUT, Assignment, MemberState, SessionEnd
from advisor.protocol.measured.trials import Outcome
from advisor.protocol.nodes.load import say_load_here
from advisor.protocol.plain_text import clean_text
from agent.backends import BACKENDS
from agent.backends.launch import Launch, SessionPlace
from agent.backends.rendezvous import find_advertised_address, offer_rendezvous
from agent.devices.foreign import refuse_busy_gpus
from agent.devices.telemetry import Sampler
from agent.errors import AgentError, AgentStopped, DevicesBusy, Unlaunchable
from agent.guard import stacks
from agent.guard.caches import Cache
from agent.guard.disk import DiskGuard
from agent.guard.isolation import Protection
from agent.guard.launcher import LaunchedSession
from agent.guard.lookups import Lookups
from agent.guard.processes import count_running
from agent.guard.progress import REMEDY, Progress
from agent.guard.rank_folder import RankFolder
from agent.guard.session_log import LogReader, read_log_tail
from agent.sessions import outcome
from agent.sessions.control import ControlSocket
from agent.sessions.measuring import Measuring
from agent.sessions.outcome import Cause, Ending, Evidence, Judgement
from agent.sessions.output import OutputReader
from agent.sessions.preparation import NodeContext, make_order, prepare_launch, protect
from agent.sessions.renewal import News, Renewal
from agent.sessions.starting import explain_lock, find_compilers

_GUARD_PERIOD_S = 0.1
_GANG_POLL_S = 0.02
_KILL_TIMEOUT_S = 10.0
_JUDGED_LOG_CHARACTERS = 200_000
_SENT_LOG_CHARACTERS = 16_000
_SENT_STACK_CHARACTERS = 16_000
_STACKS_TIMEOUT_S = 3.0
_LAUNCH_TIMEOUT_S = 10.0
_SILENCE_BEYOND_FENCE_S = 4.0
"""The agent fences its ranks itself and knows why; the shim does it for an agent that cannot."""

log = structlog.get_logger(__name__)


def name_session_dir(assignment: Assignment) -> str:
    """Return the name of a session's folder; a later generation is another launch, with a folder of its own."""
    return re.sub(r"[^\w-]", "_", f"{assignment.session_id}-{assignment.generation}")


class SessionRun:
    """Holds a place in a gang. `run` returns when every rank is gone and the server knows it, or will not listen."""

    def __init__(
        self,
        assignment: Assignment,
        context: NodeContext,
        session_dir: Path,
        signed: JobSpec | None = None,
    ) -> None:
        """`session_dir` exists and is empty but for the agent's own mark.

        `signed` is the job as its owner signed it, where the operator wants that: no other strategy is tried.
        """
        self._assignment, self._context, self._log_dir = assignment, context, session_dir
        self._warnings: list[str] = []
        self._log = LogReader(session_dir)
        self._folder = RankFolder(context.agent_marker, context.account)
        reads_output = BACKENDS[assignment.workload.kind].reads_output
        self._output = (
            OutputReader(assignment, self._folder.ranks, session_dir, context.clock) if reads_output else None
        )
        self._progress = self._output or Progress(
            self._folder.ranks, assignment.hang_timeout_s, context.clock
        )
        self._start = context.starts.make(assignment, context.settings.startup_timeout_s)
        self._launched: LaunchedSession | None = None
        self._launching = threading.Event()
        self._stacks: tuple[stacks.RankStack, ...] = ()
        self._resisting: list[int] = []
        """Processes that could not be killed."""
        self._sampler = Sampler(
            context.gpus,
            lambda: self._launched.root_pid if self._launched else None,
            period_s=1 / context.settings.telemetry_hz,
        )
        self._device_trouble = ""
        self._measuring = Measuring(
            assignment,
            context.client,
            context.delivery,
            count_steps=self._progress.count_steps,
            is_given_up=self._is_past_guard,
            signed=signed,
            counts_from_launch=reads_output,
            clock=context.clock,
        )
        self._control = ControlSocket(
            self._measuring, self._folder.path, is_ours=self._is_ours, account=context.account
        )
        self._files = Lookups(context.account, context.agent_marker, context.stopping.is_set)
        self._place = SessionPlace(
            session_dir=self._folder.ranks,
            control=self._control.path,
            agent_marker=context.agent_marker,
            session_marker=name_session_dir(assignment),
            runtime_script=context.settings.runtime_script,
            files=self._files,
        )

    def run(self) -> SessionEnd:
        """Hold the place to its end; return what the server was told."""
        kills_before = outcome.read_kernel_oom_kills()
        renewal: Renewal | None = None
        try:
            rendezvous = self._offer_rendezvous()
            # A rehearsal: what cannot be launched is said before the gang waits for it.
            self._prepare_launch(rendezvous or "127.0.0.1:1")
            self._warnings += refuse_busy_gpus(
                self._context.gpus, self._context.settings, self._context.stopping.wait
            )
            renewal = self._start_renewal(rendezvous)
            ending = self._await_gang(renewal) or self._launch_and_guard(renewal)
        except Unlaunchable as error:
            ending = Ending(Cause.UNLAUNCHABLE, str(error))
        except DevicesBusy as error:
            ending = Ending(Cause.DEVICE_UNUSABLE, str(error))
        except AgentStopped:
            ending = self._end_for_stop()
        except (OSError, ValueError, RuntimeError, LookupError) as error:
            # What a job says reaches the system's calls here: no job may end the agent, which every job needs.
            log.exception("The session could not be run.")
            what = f"{type(error).__name__}: {error}"
            if renewal is None:
                ending = Ending(Cause.UNLAUNCHABLE, f"The training cannot be started on this node ({what}).")
            else:
                ending = Ending(
                    Cause.AGENT_STOPPED, f"The agent could not attend the training any more ({what})."
                )
        finally:
            self._files.close()
            self._control.close()
            if self._output is not None:
                self._output.close()
            self._device_trouble = self._sampler.stop()
            self._folder.remove()
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

    def _prepare_launch(self, rendezvous: str) -> Launch:
        return prepare_launch(self._assignment, rendezvous, self._place, self._context)

    def _start_renewal(self, rendezvous: str | None) -> Renewal:
        renewal = Renewal(
            self._context.client,
            self._assignment.session_id,
            self._assignment.generation,
            beat_s=self._context.registered.beat_s,
            fence_s=self._context.registered.fence_s,
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
            self._context.stopping.wait(_GANG_POLL_S)
        return self._check_lease(renewal)

    def _launch_and_guard(self, renewal: Renewal) -> Ending:
        assert renewal.reply is not None  # _await_gang waited for it
        launch = self._prepare_launch(renewal.reply.rendezvous or "")
        self._folder.lay_out(launch.files)
        protection = protect(launch, self._assignment, self._context, self._place)
        self._files.close()
        self._warnings += [*launch.warnings, *protection.warnings]
        renewal.state = MemberState.RUNNING
        silence_s = renewal.fence_s + _SILENCE_BEYOND_FENCE_S
        order = make_order(launch, protection, self._context, self._log_dir, self._folder.path, silence_s)
        log.info("Launching.", session=self._assignment.session_id, command=" ".join(launch.argv))
        try:
            with LaunchedSession(order, self._context.agent_marker, self._place.session_marker) as launched:
                self._launched = launched
                self._launching.set()
                if self._output is not None:
                    self._output.start(self._measuring)
                self._sampler.start()
                ending = self._guard(launched, renewal, self._watch_disks(launch, protection))
                # A command does not hear that the session is over, so it need not be waited for.
                if ending.cause in {Cause.INSTRUCTED, Cause.SCRIPT_ENDED} and self._output is None:
                    launched.wait_exit(self._context.settings.end_grace_s)
                ending = self._look_where_ranks_stand(ending, launched, protection.caches)
                self._resisting = launched.kill(_KILL_TIMEOUT_S)
        finally:
            protection.remove_scratch()
        self._progress.update()
        return ending

    def _watch_disks(self, launch: Launch, protection: Protection) -> DiskGuard:
        written = protection.scratch or launch.working_dir
        return DiskGuard((written, self._folder.path, self._log_dir))

    def _guard(self, launched: LaunchedSession, renewal: Renewal, disks: DiskGuard) -> Ending:
        """Watch until the session is to end, or did."""
        started_s = self._context.clock()
        told_s = renewal.acknowledged_at_s
        while True:
            # An agent that was stopped meanwhile may hear the server again before it looks here.
            is_fenced = self._context.clock() - told_s > renewal.fence_s + _SILENCE_BEYOND_FENCE_S
            ending = self._measuring.ending or self._check_lease(renewal) or self._check_devices()
            ending = ending or self._check_ranks(started_s, launched.root_pid) or self._check_disks(disks)
            if ending is not None:
                return ending
            if renewal.acknowledged_at_s != told_s:
                told_s = renewal.acknowledged_at_s
                launched.keep_alive(renewal.fence_s + _SILENCE_BEYOND_FENCE_S)
            if launched.has_exited():
                was_struck = is_fenced and launched.exit_code is None
                return self._say_fenced(renewal.fence_s) if was_struck else self._hear_last_words(launched)
            self._measuring.ended.wait(_GUARD_PERIOD_S)

    def _hear_last_words(self, launched: LaunchedSession) -> Ending:
        """What was said last explains the exit better than the exit itself. Raises Unlaunchable if nothing was run."""
        if launched.unprotected:
            raise Unlaunchable(
                f"Nothing was started: what trials write cannot be kept from the real files ({launched.unprotected}). "
                "Work in a directory on a local disk; or let trials change files on this node: "
                "advisor-agent run --no-isolate."
            )
        self._control.wait_silent(timeout_s=5.0)
        if self._output is not None:
            self._output.finish(launched.exit_code, timeout_s=5.0)
            if launched.exit_code == 0 and not self._output.has_begun():
                return self._output.explain_silence()
        return self._measuring.ending or Ending(Cause.EXITED)

    def _check_lease(self, renewal: Renewal) -> Ending | None:
        if self._context.stopping.is_set():
            return self._end_for_stop()
        if renewal.is_over:
            return Ending(Cause.SERVER_ENDED, renewal.over_because)
        fence_s = renewal.fence_s
        if renewal.silent_for_s > fence_s:
            return self._say_fenced(fence_s)
        return None

    def _say_fenced(self, fence_s: float) -> Ending:
        return Ending(
            Cause.FENCED,
            f"The server acknowledged nothing for {fence_s:.0f} s, so the agent {self._context.settings.name} "
            "ended its ranks: the gang may belong to another session by now. Check the network between the two.",
        )

    def _end_for_stop(self) -> Ending:
        return Ending(Cause.AGENT_STOPPED, f"The agent {self._context.settings.name} was stopped.")

    def _check_devices(self) -> Ending | None:
        trouble = self._sampler.trouble
        return Ending(Cause.DEVICE_UNUSABLE, trouble) if trouble else None

    def _check_ranks(self, started_s: float, root: int) -> Ending | None:
        self._progress.update()
        age_s = self._context.clock() - started_s
        limit_s = self._assignment.session_timeout_s
        if not self._progress.has_begun():
            because = self._start.give_up_because(age_s, root)
            why = self._output.say_why_nothing_was_measured() if because and self._output is not None else ""
            return Ending(Cause.NEVER_BEGAN, f"{because} {why}".strip()) if because else None
        self._start.begin(age_s)
        if age_s > limit_s:
            stuck = ", and no step was made any more" if self._progress.is_stalling() else ""
            sentence = f"{LIVED_OUT} of {limit_s:.0f} s{stuck}."
            return Ending(Cause.HUNG if stuck else Cause.EXPIRED, sentence)
        hang = self._progress.find_hang(self._control.instruction_pending)
        return Ending(Cause.HUNG, hang.sentence) if hang else None

    def _check_disks(self, disks: DiskGuard) -> Ending | None:
        shortage = disks.find_shortage()
        if shortage is None:
            return None
        cause = Cause.DISK_FILLED if shortage.is_sessions_own else Cause.DISK_FULL
        return Ending(cause, shortage.sentence)

    def _look_where_ranks_stand(
        self, ending: Ending, launched: LaunchedSession, caches: Sequence[Cache]
    ) -> Ending:
        """Capture the stacks of ranks that made no progress, and say in the ending where each of them stands.

        Also when another node found the hang first and the server ended the session: its ranks wait here.
        """
        is_stuck = ending.cause in {Cause.HUNG, Cause.NEVER_BEGAN} or (
            ending.cause is Cause.SERVER_ENDED and self._progress.is_stalling()
        )
        if not (is_stuck or ending.cause is Cause.EXPIRED) or launched.has_exited():
            return ending
        load = say_load_here(own=count_running(launched.root_pid))
        if is_stuck:
            self._stacks = stacks.capture_stacks(self._folder.ranks, launched.owns, _STACKS_TIMEOUT_S)
        lock = explain_lock(self._stacks, caches, find_compilers(launched.root_pid))
        remedy = lock or (REMEDY if ending.cause is Cause.HUNG else "")
        told = [ending.sentence, stacks.describe_positions(self._stacks), load, remedy]
        return replace(ending, sentence=" ".join(filter(None, told)))

    def _gather_evidence(self, kills_before: int) -> Evidence:
        launched = self._launched
        return Evidence(
            log_text=read_log_tail(self._log_dir, _JUDGED_LOG_CHARACTERS),
            exit_code=launched.exit_code if launched else None,
            steps=self._progress.count_steps() or 0,
            is_command=self._output is not None,
            launched_as_is=not self._assignment.cold,
            nnodes=self._assignment.nnodes,
            node_rank=self._assignment.node_rank,
            kernel_oom_kills=outcome.read_kernel_oom_kills() - kills_before,
            device_failure=self._device_trouble,
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
        tail = read_log_tail(self._log_dir, _SENT_LOG_CHARACTERS)
        if self._stacks:
            tail += "\n[advisor] Where the ranks stood:\n" + clean_text(
                stacks.write_out(self._stacks, _SENT_STACK_CHARACTERS)
            )
        ending = SessionEnd(
            generation=self._assignment.generation,
            outcome=judgement.outcome,
            reason=reason,
            log_tail=tail,
            trouble=judgement.trouble,
            total_steps=self._measuring.total_steps or judgement.failed_after,
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
        text = clean_text(notes) + self._log.read_news(most_characters)
        return News(self._progress.count_steps(), self._sampler.drain(), text)

    def _is_past_guard(self) -> bool:
        stopping = self._context.stopping.is_set()
        return stopping or (self._launched is not None and self._launched.has_exited())

    def _is_ours(self, pid: int) -> bool:
        """Whether a process is one of the session's; it may speak before the constructor that started it returned."""
        self._launching.wait(_LAUNCH_TIMEOUT_S)
        return self._launched is not None and self._launched.owns(pid)
