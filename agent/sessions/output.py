"""Reads what a command writes, tells from it how far it is, and holds the talk about races that a runtime would hold.

Lines come from the results file once the program writes it, else from its output. Every strategy has a launch of its
own, so a race has one arm, a stretch of one launch's steps; any other strategy needs another launch.
"""

import os
import stat
import threading
from collections.abc import Callable
from math import isfinite
from pathlib import Path
from statistics import fmean, median

import structlog
from pydantic import ValidationError

from advisor.protocol.knobs.changes import period_of
from advisor.protocol.knobs.reach import list_given, list_substituted
from advisor.protocol.measured.messages import LAUNCH_FAILED, Assignment, Trouble
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import BlockPlan
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.training.launch_command import count_ranks
from advisor.protocol.training.own_knobs import spell
from advisor.protocol.training.settling import say_placed, settle
from advisor.protocol.training.workload import Workload, WorkloadFacts, WorkloadKind
from agent.backends.results import LONGEST_LINE, RESULTS_FILE, Results, Step
from agent.guard.progress import Hang
from agent.guard.session_log import LogReader
from agent.sessions.control import Dialogue, Hello
from agent.sessions.outcome import Cause, Ending

_MOST_READ = 16 * 2**20
_STEPS_BEFORE_HELLO = 2
"""By the second step every rank of this node has usually told its first."""
_TURNS = (
    "The server asked for a race of several strategies in one launch of a command, which takes its knobs when it "
    "starts: server and agent must be of one version."
)

log = structlog.get_logger(__name__)


class OutputReader:
    """One launch of a command on this node. The guard calls `update`; a thread of its own talks on node 0."""

    def __init__(
        self,
        assignment: Assignment,
        ranks_folder: Path,
        log_folder: Path,
        clock: Callable[[], float],
    ) -> None:
        """The results file lies in `ranks_folder`, the log of the session in `log_folder`."""
        self._assignment, self._clock = assignment, clock
        self._settled = settle(assignment.workload, assignment.cold)
        self._file = _LineFile(ranks_folder / RESULTS_FILE)
        self._log = _LogLines(log_folder)
        self._results = Results(assignment.workload.pattern)
        self._news_at_s = clock()
        self._changed = threading.Condition()
        self._exit_code: int | None = None
        self._is_over = False
        self._thread: threading.Thread | None = None

    # What the guard asks.

    def start(self, dialogue: Dialogue) -> None:
        """The command runs: node 0 begins to talk about it."""
        self._news_at_s = self._clock()
        if self._speaks:
            self._thread = threading.Thread(target=self._talk, args=(dialogue,), name="output", daemon=True)
            self._thread.start()

    def update(self) -> None:
        """Read what the command wrote since the last time."""
        from_log, from_file = self._log.read(), self._file.read()
        with self._changed:
            now_s = self._clock()
            if from_log or from_file:
                self._news_at_s = now_s
            if from_file and not self._file.is_chosen:
                # What the program writes for us counts instead of its output, from the first line on.
                self._file.is_chosen = True
                self._results = Results("")
            for line in from_file if self._file.is_chosen else from_log:
                self._results.read_line(line, now_s)
            self._changed.notify_all()

    def count_steps(self) -> int | None:
        """Return the steps that all ranks of this node told; None before the first."""
        return self._results.count_steps() or None

    def has_begun(self) -> bool:
        """Whether a step was told. Only node 0's command has to tell any: the ranks of the others may be silent."""
        return not self._speaks or self._results.count_steps() > 0

    def is_stalling(self) -> bool:
        """Whether the command's silence is a finding: its lines tell nothing between two of them."""
        return False

    def find_hang(self, _instruction_pending: bool) -> Hang | None:
        """Return a hang when the command has written no line for too long after its first step."""
        silent_s = self._clock() - self._news_at_s
        if not self._speaks or not self.has_begun() or silent_s <= self._assignment.hang_timeout_s:
            return None
        return Hang(
            0,
            f"The command wrote no line for {silent_s:.0f} s after step {self._results.count_steps()}, so the session "
            "was ended. If a step, an evaluation or a checkpoint may take that long, raise the job's hang_timeout_s.",
        )

    def finish(self, exit_code: int | None, timeout_s: float) -> None:
        """The command has ended: read its last lines, and let what they say be told."""
        self.update()
        self._end(exit_code)
        if self._thread is not None:
            self._thread.join(timeout_s)

    def close(self) -> None:
        """Listen no more."""
        self._end(self._exit_code)

    def explain_silence(self) -> Ending:
        """Return the ending of a launch that came to its regular end without a step; changed knobs may be to blame."""
        sentence = self.say_why_nothing_was_measured()
        trouble = None if self._assignment.cold else Trouble(code=LAUNCH_FAILED, sentence=sentence)
        return Ending(Cause.TROUBLE, sentence, trouble)

    def say_why_nothing_was_measured(self) -> str:
        """Return what to do about a command that told no step."""
        if self._assignment.workload.kind is WorkloadKind.PADDLE:
            return (
                "The script made no training step that can be seen: no paddle.DataParallel (or "
                "fleet.distributed_model) was built whose optimizer then stepped. Only dynamic-graph data parallelism "
                "is tuned; scripts of another kind can be tuned as --kind command."
            )
        where = (
            f"no line of its output matched the pattern {self._assignment.workload.pattern!r}"
            if self._assignment.workload.pattern
            else 'it wrote no line such as {"step_time_s": 0.12, "samples": 64}, neither to its output nor to the file '
            "that ADVISOR_RESULTS names"
        )
        return (
            f"The command told no training step: {where}. Let it write one line a step, or give a --pattern that "
            "finds the time in the lines that it writes."
        )

    @property
    def _speaks(self) -> bool:
        return self._assignment.node_rank == 0

    def _end(self, exit_code: int | None) -> None:
        with self._changed:
            self._exit_code, self._is_over = exit_code, True
            self._changed.notify_all()

    # The talk, in its own thread.

    def _talk(self, dialogue: Dialogue) -> None:
        try:
            self._converse(dialogue)
        except Exception as error:
            # Nothing else would notice: the command would run on, unmeasured, until its session is too old.
            log.exception("The talk about a command's races failed.")
            dialogue.take_nonsense(
                f"The agent failed while it read the command's results ({type(error).__name__}: {error}): this is a "
                "defect of the agent, whose log has the details."
            )

    def _converse(self, dialogue: Dialogue) -> None:
        self._await(lambda: self._results.count_steps() >= _STEPS_BEFORE_HELLO)
        if not self._results.count_steps():
            return
        try:
            hello = self._describe()
        except ValidationError as error:
            finding = error.errors()[0]
            dialogue.take_nonsense(
                f"The facts that the command tells are not understood: {'.'.join(map(str, finding['loc']))}: "
                f"{finding['msg']}. docs/commands.md lists them."
            )
            return
        reply = dialogue.greet(hello)
        first = 0
        while reply.race is not None:
            if len(reply.race.arms) > 1:
                dialogue.take_nonsense(_TURNS)
                return
            plan = reply.race.arms[0]
            result = self._measure(plan, first)
            if result is None:
                return
            first += result.warmup_steps + result.steps
            reply = dialogue.take_race(reply.race.race_id, {plan.block_id: result})

    def _await(self, is_there: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over or is_there())

    def _describe(self) -> Hello:
        workload, nodes = self._assignment.workload, self._assignment.nnodes
        with self._changed:
            told = self._results  # one look: the first line of its own file puts others in their place
            steps = told.list_steps(0, told.count_steps())
        # Often one rank writes for all: what starts them says how many there are.
        ranks = max(told.ranks, count_ranks(self._settled.command) or 1)
        facts = {
            "backend": "",
            "device": DeviceKind.CPU,
            "world_size": ranks * nodes,
            "local_world_size": ranks,
            "nodes": nodes,
            "gradient_bytes": 0,
            "parameter_tensors": 0,
            "layers": 0,
            "batch_size_per_rank": fmean(_samples_of(step, self._settled) for step in steps) / told.ranks,
            "step_time_s_hint": steps[-1][0].time_s,
            **told.about.facts,
        }
        return Hello(WorkloadFacts.model_validate(facts), {**list_given(workload), **told.about.baseline}, {})

    def _measure(self, plan: BlockPlan, first: int) -> BlockResult | None:
        """Return the block behind the `first` steps; None when the command failed, which the guard judges."""
        if dict(plan.overrides) != dict(self._assignment.cold):
            return BlockResult(
                steps=0, step_time_s=(), samples_per_step=0, wall_s=0,
                relaunch_needed="A command takes its knobs when it starts, and this one was started with others.",
            )  # fmt: skip
        begin = first + plan.rules.warmup_steps
        self._await(lambda: self._count_planned(plan, begin) is not None)
        with self._changed:
            count = self._count_planned(plan, begin)
            if count is None:
                if self._exit_code != 0:
                    return None
                count = max(0, self._results.count_steps() - begin)
            steps = self._results.list_steps(begin, begin + count)
            has_ended = self._is_over and len(steps) < plan.rules.min_steps
            return self._summarise(plan, steps, has_ended)

    def _count_planned(self, plan: BlockPlan, begin: int) -> int | None:
        """Return how many steps the block has, None while it needs more.

        Its seconds are those that the lines tell, or those that pass between them where that is more: a line may tell a
        rate alone, or one step of many.
        """
        rules = plan.rules
        steps = self._results.list_steps(begin, begin + rules.max_steps)
        if len(steps) < rules.min_steps:
            return None
        before = self._results.list_steps(begin - 1, begin) if begin else steps
        told_s, begun_s = 0.0, _heard_at(before[0])
        for count, step in enumerate(steps, start=1):
            told_s += _time_of(step)
            passed_s = max(told_s, _heard_at(step) - begun_s)
            if count >= rules.min_steps and (passed_s >= rules.target_s or count == rules.max_steps):
                return count
        return None

    def _summarise(self, plan: BlockPlan, steps: list[tuple[Step, ...]], has_ended: bool) -> BlockResult:
        about = self._results.about
        nodes = self._assignment.nnodes if self._results.ranks > 1 else 1
        times = tuple(_time_of(step) for step in steps)
        samples = [_samples_of(step, self._settled) * nodes for step in steps]
        losses = [loss for step in steps if (loss := step[0].loss) is not None]
        finite = tuple(loss for loss in losses if isfinite(loss))
        consumed, not_consumed = self._weigh(plan)
        return BlockResult(
            steps=len(steps),
            period=self._find_period(plan),
            warmup_steps=plan.rules.warmup_steps,
            step_time_s=times,
            samples_per_step=fmean(samples) if samples else 0.0,
            samples=sum(samples),
            step_samples=tuple(samples) if len(set(samples)) > 1 else (),
            wall_s=sum(times),
            per_rank_step_time_s=tuple(
                median(s.time_s for s in of_rank) for of_rank in zip(*steps, strict=True)
            ),
            losses=finite,
            diverged=len(finite) < len(losses),
            nonfinite_losses=len(losses) - len(finite),
            bucket_bytes=about.bucket_bytes,
            consumed=consumed,
            not_consumed=not_consumed,
            no_effect={name: words for name, words in about.no_effect.items() if name in plan.overrides},
            script_ended=has_ended,
        )

    def _weigh(self, plan: BlockPlan) -> tuple[dict[str, str], dict[str, str]]:
        """Return what proves that the launch's knobs are in force, and what is missing where nothing does."""
        workload, about = self._assignment.workload, self._results.about
        words = list_substituted(workload.command)
        placed = {
            knob.name: say_placed(knob, plan.overrides.get(knob.name, knob.own_value))
            for knob in workload.own
        }
        consumed: dict[str, str] = {}
        not_consumed: dict[str, str] = {}
        for name in plan.overrides:
            if name in about.not_consumed:
                not_consumed[name] = about.not_consumed[name]
            elif name in about.consumed:
                consumed[name] = about.consumed[name]
            elif placed.get(name):
                consumed[name] = placed[name]
            elif name in words:
                value = spell(plan.overrides[name])
                consumed[name] = f"{value} stands in the command, in the place of {words[name]}."
            else:
                not_consumed[name] = (
                    "The program was given it in its environment, but does not say that it used it: let it write "
                    f'{{"consumed": ["{name}"]}}, or write ${{{name}}} into the command.'
                )
        return consumed, not_consumed

    def _find_period(self, plan: BlockPlan) -> int:
        return period_of({**list_given(self._assignment.workload), **plan.overrides})


class _LineFile:
    """The whole lines that a file got since the last read; there may be no such file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._part = b""
        self.is_chosen = False
        """The program writes it, so its output is no result."""

    def read(self) -> list[str]:
        try:
            # The program may have put a pipe there, or a link to a file of the agent's.
            opened = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(opened, "rb") as file:
                if not stat.S_ISREG(os.fstat(opened).st_mode):
                    return []
                file.seek(self._offset)
                data = self._part + file.read(_MOST_READ)
                self._offset = file.tell()
        except OSError:
            return []
        *lines, self._part = data.split(b"\n")
        self._part = self._part[-LONGEST_LINE:]
        return [line.decode("utf-8", "replace") for line in lines]


class _LogLines:
    """The whole lines of the session's log since the last read."""

    def __init__(self, folder: Path) -> None:
        self._log = LogReader(folder)
        self._part = ""

    def read(self) -> list[str]:
        *lines, part = (self._part + self._log.read_news(_MOST_READ)).split("\n")
        self._part = part[-LONGEST_LINE:]
        return lines


def _time_of(step: tuple[Step, ...]) -> float:
    """The slowest rank's."""
    return max(each.time_s for each in step)


def _heard_at(step: tuple[Step, ...]) -> float:
    """When the last rank had told it, by the reader's clock."""
    return max(each.heard_s for each in step)


def _samples_of(step: tuple[Step, ...], workload: Workload) -> float:
    """Of all ranks that told this step."""
    counted = workload.samples_per_step if isinstance(workload.samples_per_step, int) else None
    return sum(each.samples or counted or 1.0 for each in step)
