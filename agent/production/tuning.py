"""The other end of `advisor run --tune`: server and agent in one, for one real training that tunes itself.

The planner is the server's own. Only exact knobs that switch between two steps take part, so every step stays the step
it is, but for the order in which some of them add numbers up (threads on processors, buckets of more than two ranks);
the launch is the training itself, so a gain holds for this run and not beyond its own luck.
"""

import json
import math
import os
import queue
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from advisor.course.played import PlayedJob, Raced
from advisor.protocol.answers.advice import Interval, Provenance, Verdict
from advisor.protocol.answers.strategy_file import StrategyFile
from advisor.protocol.asked.jobs import Budget, Job, JobSpec, JobState, Stage
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect, Switch
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.strategy import collective_defaults
from advisor.protocol.measured.messages import NextReply, Trouble
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Block, Purpose, RacePlan, Trial
from advisor.protocol.nodes.cluster import Cluster
from advisor.protocol.training.workload import Workload
from advisor.tuning.decisions import BASELINE, Candidate, Launch, Race
from advisor.tuning.history.comparisons import list_comparisons
from advisor.tuning.history.record import Record
from advisor.tuning.measure.student_t import t_quantile
from advisor.tuning.search.state import choose_winner, look
from advisor.tuning.stages.trimming import choose_trimmed
from advisor.tuning.stages.turns import verdict_rules
from agent.devices.gpus import open_gpus
from agent.devices.hardware import describe_node
from agent.production.beside import Training
from agent.sessions.control import ControlSocket, Hello, ScriptEnded

_LEVEL = 0.95
"""Of the interval that decides, shared among the candidates: one is taken when all of it lies above no gain."""
_SHARE_OF_VERDICT = 0.35
"""Part of the time that the race of the search's winner against the script's own settings gets."""
_CLOSE, _OF_LEAD = 0.004, 0.04
"""Standard error of ln(throughput ratio) at which the last race ends: so much, or so much of the lead."""
_GIVE_UP_RATIO = 1.2
"""Times the script's own step from which the winner is given up in it."""
_MOST_DECISIONS = 500
_LONGEST_START_S = 1800.0
"""Seconds that ranks may say nothing beyond the time for tuning: while they start, and load what they train."""
_SILENT = "The ranks have said nothing for so long that tuning ends: the training goes on as it is."
HOT = tuple(
    name
    for name, knob in CATALOGUE.items()
    if knob.effect is Effect.EXACT
    and knob.switch is Switch.HOT
    and not knob.carried
    and name not in {"sharding_stage", "sharding_gather_ranks"}
)
"""Knobs that take part: not those under which a script must not read its parameters between forward and backward."""


class _Gone(Exception):
    """The training has ended, or cannot be tuned: a sentence, unless the ranks have said it."""

    def __init__(
        self, sentence: str = "The training ended, or was started anew, before tuning was over."
    ) -> None:
        super().__init__(sentence)


@dataclass(frozen=True)
class Limits:
    """What tuning may cost the training."""

    seconds: float
    """Wall time in which strategies take turns."""
    lost_s: float
    """Time that slower strategies may cost in all."""
    left: tuple[str, ...] = ()
    """Knobs that stay as the script has them."""


@dataclass(frozen=True)
class Start:
    """What tuning starts from, beside the script's own settings."""

    changes: Changes = Changes()
    own: Mapping[str, Value] = field(default_factory=dict)
    """The script's own values of the changed knobs, where they are known."""


class _Line:
    """Hands what the ranks say to the planner's thread, and its orders back."""

    def __init__(self, training: Training, seconds: float) -> None:
        self._training, self._seconds = training, seconds
        self.said: queue.Queue[Hello | Mapping[str, BlockResult] | _Gone] = queue.Queue()
        self.orders: queue.Queue[NextReply] = queue.Queue()

    def greet(self, hello: Hello) -> NextReply:
        """The planner's first order."""
        self.said.put(hello)
        return self.orders.get()

    def take_race(self, race_id: str, results: Mapping[str, BlockResult]) -> NextReply:  # noqa: ARG002
        """The planner's next order."""
        self.said.put(results)
        return self.orders.get()

    def take_trouble(self, trouble: Trouble) -> None:  # noqa: ARG002 - the ranks say it
        """There is nothing to tune."""
        self.said.put(_Gone(""))

    def take_ending(self, ending: ScriptEnded) -> None:  # noqa: ARG002
        """The training is over."""
        self.said.put(_Gone())

    def take_nonsense(self, sentence: str) -> None:
        """The ranks are told to go on as they are."""
        self.said.put(_Gone(sentence))

    def hear(self) -> Hello | Mapping[str, BlockResult]:
        """What the ranks say next; raises _Gone when they say nothing any more."""
        silent_at_s = time.monotonic() + self._seconds
        # A command that may wait for this process is given no longer: it would not end before.
        silent_at_s += 0.0 if self._training.is_our_parent else _LONGEST_START_S
        while True:
            try:
                said = self.said.get(timeout=1.0)
            except queue.Empty:
                if self._training.has_ended():
                    raise _Gone from None
                if time.monotonic() > silent_at_s:
                    raise _Gone(_SILENT) from None
                continue
            if isinstance(said, _Gone):
                raise said
            return said


class OnlineJob(PlayedJob):
    """A job whose only launch is the training."""

    def __init__(self, line: _Line, hello: Hello, limits: Limits, command: Sequence[str]) -> None:
        spec = JobSpec(
            name="online",
            workload=Workload(command=tuple(command)),
            knobs=tuple(name for name in HOT if name not in limits.left),
            budget=Budget(max_seconds=max(1.0, limits.seconds), max_trials=60),
        )
        now = _START
        job = Job(
            id="online", spec=spec, state=JobState.RUNNING, created_at=now, facts=hello.facts,
            cluster=_describe_cluster(hello.facts.nodes), baseline=hello.baseline, refusals=hello.refusals,
        )  # fmt: skip
        super().__init__(job, 0.0, now)
        self._line, self._limits = line, limits
        self.lost_s = 0.0

    def play_launch(self) -> None:
        """The training runs already."""

    def play_race(self, race: Race, trials: Sequence[Trial], arms: Sequence[Block]) -> Raced:  # noqa: ARG002
        """Let the ranks race."""
        start_s = time.monotonic()
        self._line.orders.put(NextReply(race=RacePlan(arms=tuple(arm.plan for arm in arms))))
        said = self._line.hear()
        if isinstance(said, Hello):
            raise _Gone  # the ranks were started anew
        results = [said.get(arm.id) for arm in arms]
        if any(result is None for result in results):
            raise _Gone
        measured = [result for result in results if result is not None]
        self.lost_s += sum(_lost(result, measured[0]) for result in measured[1:])
        return Raced(measured, time.monotonic() - start_s)

    def search(self) -> None:
        """Let the planner search until it wants its verdict, or the time or the loss is used up."""
        for _ in range(_MOST_DECISIONS):
            decision = self.decide()
            if not isinstance(decision, Launch):
                is_over = (
                    self.lost_s > self._limits.lost_s
                    or self._spent_s() > (1.0 - _SHARE_OF_VERDICT) * self._limits.seconds
                )
                if is_over or not isinstance(decision, Race) or decision.stage is Stage.CONFIRM:
                    return
            self.carry_out(decision)

    def decide_verdict(self) -> tuple[Changes, Interval | None]:
        """Race the search's winner and its core against the script's own settings; return what it goes on with."""
        record = Record(self.job, self.history, self.now)
        state = look(record)
        whole, core = (choose_winner(state), choose_trimmed(state)) if state is not None else (None, None)
        left_s = self._limits.seconds - self._spent_s()
        if whole is None or core is None or left_s <= 0 or self.lost_s > self._limits.lost_s:
            return Changes(), None
        # Few short races tell badly which settings carry the gain: what has won them races beside its expected core.
        strategies = list(dict.fromkeys((core.changes, whole.changes)))
        arms = (BASELINE, *(Candidate(Purpose.CONFIRM, changes, whole.because) for changes in strategies))
        lead = max(
            (c.contrast.mean for c in list_comparisons(record, Purpose.SEARCH, whole.changes)), default=0.0
        )
        # A plain lead needs no long race, and a candidate that is slower after all is left at once.
        rules = replace(
            verdict_rules(record, arms, left_s),
            target_error=max(_CLOSE, _OF_LEAD * lead),
            give_up_ratio=_GIVE_UP_RATIO,
        )
        self.carry_out(
            Race(Stage.CONFIRM, "The winner against the settings as they are.", arms, rules, record.next_race)
        )
        raced = zip(strategies, self.blocks[-len(strategies) :], strict=True)
        found = {changes: b.summary.contrast for changes, b in raced if b.summary and b.summary.contrast}
        if not found:
            return Changes(), None
        least = math.log1p(self.job.spec.min_gain)
        best = max(contrast.mean for contrast in found.values())
        changes, contrast = next((c, told) for c, told in found.items() if told.mean > best - least)
        share = (1.0 - _LEVEL) / (2.0 * len(found))
        half = t_quantile(1.0 - share, max(1, int(contrast.freedom))) * contrast.error
        interval = Interval(
            ratio=math.exp(contrast.mean), low=math.exp(contrast.mean - half), high=math.exp(contrast.mean + half),
            rounds=contrast.cycles, sessions=1,
        )  # fmt: skip
        worthwhile = interval.low > 1.0 and contrast.mean >= least
        return (changes if worthwhile else Changes()), interval

    @property
    def baseline_samples_per_s(self) -> float:
        """Of the settings as they are, in the last race."""
        summary = next(b.summary for b in reversed(self.blocks) if b.summary and not b.plan.overrides)
        return summary.samples_per_s

    def _spent_s(self) -> float:
        return (self.now - self.job.created_at).total_seconds()


_START = datetime(2026, 1, 1, tzinfo=UTC)
"""The job's clock counts from here; only differences matter."""


def _describe_cluster(nodes: int) -> Cluster:
    """The nodes, as if each were this one."""
    gpus = open_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), os.environ)
    try:
        return Cluster(nodes=(describe_node(gpus),) * nodes)
    finally:
        gpus.close()


def _lost(result: BlockResult, baseline: BlockResult) -> float:
    """Seconds by which an arm's steps took longer than the script's own would have."""
    if not result.steps or not baseline.steps:
        return 0.0
    return max(0.0, result.wall_s - result.steps * baseline.wall_s / baseline.steps)


def tune(
    folder: Path, limits: Limits, output: Path, command: Sequence[str], start: Start, training: Training
) -> None:
    """Serve one training that tunes itself; write the strategy it goes on with to `output`."""
    line = _Line(training, limits.seconds)
    control = ControlSocket(line, folder, is_ours=lambda _: True)
    training.say_ready()
    try:
        hello = line.hear()
        if not isinstance(hello, Hello):
            return
        job = OnlineJob(line, hello, limits, command)
        job.search()
        changes, interval = job.decide_verdict()
        sentence = _describe(job, changes, interval, start)
        _write(job, Changes({**start.changes, **changes}), interval, sentence, output, start)
        line.orders.put(NextReply(end_because=sentence, settle=changes))
        _say(sentence)
        if changes or start.changes:
            _say(
                f"The strategy lies in {output}: advisor run --strategy {output} starts with it the next time."
            )
    except _Gone as gone:
        if str(gone):
            _say(str(gone))
    except Exception as error:
        # The ranks wait for an order: whatever went wrong here, the training goes on as it was.
        line.orders.put(NextReply(end_because="Tuning has failed.", settle=Changes()))
        _say(f"Tuning has failed, the training goes on as it was: {error!r}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.5)  # the last order is on its way
        control.close()


def _describe(job: OnlineJob, changes: Changes, interval: Interval | None, start: Start) -> str:
    tried = sum(t.purpose is Purpose.SEARCH for t in job.trials)
    cost = f"{tried} strategies took turns in {job.now - job.job.created_at}".split(".")[0]
    cost += f" and cost {job.lost_s:.1f} s"
    if interval is None:
        return f"Tuned while training: nothing to change; {cost}."
    if start.changes:
        cost = f"all over the strategy that it started with; {cost}"
    if not changes:
        return f"Tuned while training: your settings stay (the best was {interval.describe()}); {cost}."
    return f"Tuned while training: {interval.describe()} with {changes.describe()}, from here on; {cost}."


def _write(
    job: OnlineJob, changes: Changes, interval: Interval | None, sentence: str, output: Path, start: Start
) -> None:
    baseline = {
        **collective_defaults().values(),
        **{k: v for k, v in job.job.baseline.items() if k in CATALOGUE},
        **start.own,
    }
    facts = job.job.facts
    output.touch()
    written = datetime.fromtimestamp(output.stat().st_mtime, UTC)
    file = StrategyFile(
        job_id="online", job_name="online", date=written,
        verdict=Verdict.CHANGE if changes else Verdict.KEEP, headline=sentence, gain=interval,
        baseline_samples_per_s=job.baseline_samples_per_s if job.blocks else None, allowed=Effect.EXACT,
        effect=Effect.EXACT, changes=changes, strategy={**baseline, **changes}, baseline=baseline,
        provenance={n: Provenance.MEASURED if n in changes else Provenance.CARRIED for n in CATALOGUE},
        cluster=job.job.cluster.describe(), software={"torch": facts.torch_version} if facts else {}, holds_for=facts,
    )  # fmt: skip
    output.write_text(json.dumps(file.model_dump(mode="json"), indent=2, ensure_ascii=False) + "\n")


def _say(sentence: str) -> None:
    sys.stderr.write(f"fleet advisor: {sentence}\n")
    sys.stderr.flush()
