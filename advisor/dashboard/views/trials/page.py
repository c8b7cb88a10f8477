"""A trial's own page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from advisor.dashboard import formats
from advisor.dashboard.figures.charts import Figure, draw_phases
from advisor.dashboard.figures.trial import RankBlock, StepSeries, draw_ranks, draw_steps
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.gains import spell_percent
from advisor.protocol.measured.estimates import Estimate, estimate_blocks
from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.measured.trials import Block, BlockState, JobHistory, Trial
from advisor.protocol.training.workload import WorkloadKind
from advisor.services.changing.repeating import say_why_not
from advisor.services.jobs import may_change
from advisor.services.tokens import Principal


@dataclass(frozen=True)
class TrialPage:
    """Everything a trial's page shows."""

    trial: Trial
    is_measuring: bool
    """Whether one of its blocks is being measured now."""
    estimate: Estimate | None
    """None before its first block."""
    evidence: Mapping[str, str]
    """Knob -> evidence that it was in force, or why it was not."""
    phases: Figure | None
    late_rank: int | None
    steps: Figure | None
    rank_map: Figure | None
    missing: tuple[str, ...]
    """Why a figure is not there, a sentence for each; nothing while no step has been timed."""
    raced_as: int | None
    """The trial that was raced in its place, because both come to the same."""
    ranks: tuple[tuple[int, str, str, str], ...]
    """Rank, mean step time in ms, that without waiting for others, and how it differs from the median rank's."""
    last: Block | None
    """The last measured block: its devices and buckets are shown."""
    blocks: tuple[Block, ...]
    generations: Mapping[str, int]
    """Session -> which launch of the job it was."""


@dataclass(frozen=True)
class Repeat:
    """Whether the trial can be measured again, and whether a user has asked for it."""

    may_ask: bool
    is_awaited: bool
    """Another race of it is going on, or was asked for and has not begun."""
    note: str
    """A sentence for a reader who may change the job: what became of the request, or why there is no button."""


def is_measured_now(trial: Trial, blocks: Sequence[Block]) -> bool:
    """Return whether one of the trial's blocks is being measured."""
    return any(block.trial_number == trial.number and block.state is BlockState.ISSUED for block in blocks)


def view_repeat(job: Job, trial: Trial, history: JobHistory, person: Principal) -> Repeat:
    """Build what the page says about measuring the trial again; nothing for a job that has ended."""
    is_over = job.state.is_final or job.state is JobState.CANCELLING
    why_not = say_why_not(job, history.trials, trial)
    asked = trial.asked_again_at is not None and history.awaits_repeat(trial)
    if asked and (is_over or why_not):
        return Repeat(False, False, "Another race was asked for; the search was over before there was one.")
    if trial.outcome is not None and not is_over and is_measured_now(trial, history.blocks):
        return Repeat(False, True, "It is being measured again: all its races count together.")
    if asked:
        return Repeat(False, True, "It is to be measured again, as soon as the search starts a race.")
    if is_over or not may_change(person, job):
        return Repeat(False, False, "")
    return Repeat(not why_not, False, why_not)


def last_loss(block: Block) -> str:
    """Return the last loss of a block that is a number; a dash where there is none."""
    finite = [loss for loss in block.result.losses if loss == loss] if block.result else []
    return f"{finite[-1]:.4g}" if finite else formats.NO_VALUE


def _find_evidence(trial: Trial, blocks: Sequence[Block]) -> dict[str, str]:
    results = [block.result for block in blocks if block.result is not None]
    consumed = {knob: told for result in results for knob, told in result.consumed.items()}
    refused = {knob: told for result in results for knob, told in result.not_consumed.items()}
    return {
        knob: f"not in force: {refused[knob]}" if knob in refused else consumed.get(knob, "no evidence yet")
        for knob in trial.changes
    }


def _list_ranks(block: Block | None) -> tuple[tuple[int, str, str, str], ...]:
    if block is None or block.result is None or len(block.result.per_rank_step_time_s) < 2:
        return ()
    if not any(block.result.per_rank_step_time_s):
        return ()
    times = block.result.per_rank_step_time_s
    works = block.result.per_rank_work_s or (0.0,) * len(times)
    middle = median(works)
    return tuple(
        (
            rank, formats.milliseconds(seconds), formats.milliseconds(work if middle else None),
            spell_percent(work / middle) if middle else formats.NO_VALUE,
        )
        for rank, (seconds, work) in enumerate(zip(times, works, strict=False))
    )  # fmt: skip


def _draw_steps(done: Sequence[Block]) -> Figure | None:
    series, untimed = [], 0
    for block in done:
        if block.result is None or not block.result.step_time_s:
            continue
        times, period = block.result.step_time_s, max(1, block.result.period)
        # The arms of a race settle before their first timed step: nothing is cut. Whole periods are.
        whole = len(times) - len(times) % period or len(times)
        alone = block.summary is not None and not block.result.segments
        cut = max(0, whole - block.summary.steady_steps) if alone and block.summary else 0
        series.append(StepSeries(f"block {block.ordinal}", times, cut))
        untimed = max(untimed, block.result.warmup_steps)
    return draw_steps(series, untimed) if series else None


def _draw_ranks(done: Sequence[Block], generations: Mapping[str, int]) -> Figure | None:
    """Each rank's own work where it is known: ranks that wait for a slower one take equally long steps."""
    results = [(block, block.result) for block in done if block.result is not None]
    works = [(block, result.per_rank_work_s) for block, result in results if any(result.per_rank_work_s)]
    found = works or [(block, result.per_rank_step_time_s) for block, result in results]
    blocks = [
        RankBlock(
            f"launch {generations.get(block.session_id, formats.NO_VALUE)}, block {block.ordinal}", seconds
        )
        for block, seconds in found
        if len(seconds) > 1 and min(seconds) > 0
    ]
    if len(blocks) < 2:  # Of one block the table of ranks says all.
        return None
    return draw_ranks(blocks, "own work of a step, without waiting for others" if works else "time of a step")


def _say_missing(result: BlockResult, phases: Figure | None, kind: WorkloadKind) -> Iterator[str]:
    if phases is None and kind is WorkloadKind.PYTORCH:
        yield "Where a step's time goes: the ranks told step times only."
    elif phases is None:
        yield f"Where a step's time goes: a training of kind {kind.value} tells step times only."
    if not result.step_time_s:
        yield "Single steps: none was timed. The blocks' notes say why."
    ranks = len(result.per_rank_step_time_s)
    if ranks == 1:
        yield "Ranks side by side: one rank trains, so that there is nothing to compare."
    elif not any(result.per_rank_step_time_s):
        yield "Ranks side by side: the training told no times of single ranks."


def _choose_another(result: BlockResult) -> list[tuple[int, Phases]]:
    """Beside a late rank the one that waits longest for it."""
    if result.late is None or not result.per_rank_phases:
        return []
    ranks = range(len(result.per_rank_phases))
    waiting = max(ranks, key=lambda rank: result.per_rank_phases[rank].wait_s)
    return [(waiting, result.per_rank_phases[waiting])]


def _find_twin(blocks: Sequence[Block], history: JobHistory) -> int | None:
    """The trial whose block was raced for one of these as well."""
    twins = {block.result.same_as for block in blocks if block.result is not None and block.result.same_as}
    return next((block.trial_number for block in history.blocks if block.id in twins), None)


def view_trial_page(
    trial: Trial, history: JobHistory, kind: WorkloadKind = WorkloadKind.PYTORCH
) -> TrialPage:
    """Build the page; phases, ranks and buckets are those of the trial's last measured block."""
    blocks = [block for block in history.blocks if block.trial_number == trial.number]
    done = [block for block in blocks if block.state is BlockState.DONE and block.result is not None]
    last = done[-1] if done else None
    result = last.result if last else None
    has_phases = result is not None and result.phases.total_s() > 0
    phases = None
    if result is not None and has_phases:
        series = [(f"rank {result.phases_rank}", result.phases)]
        series += [(f"rank {other}", phases) for other, phases in _choose_another(result)]
        phases = draw_phases(series, "One step, phase by phase")
    generations = {session.id: session.generation for session in history.sessions}
    steps = _draw_steps(done)
    rank_map = _draw_ranks(done, generations)
    estimate = estimate_blocks(done)
    return TrialPage(
        trial=trial,
        is_measuring=is_measured_now(trial, blocks),
        estimate=estimate,
        evidence=_find_evidence(trial, blocks),
        phases=phases,
        late_rank=result.late.rank if result and result.late else None,
        steps=steps,
        rank_map=rank_map,
        missing=tuple(_say_missing(result, phases, kind)) if result and estimate else (),
        raced_as=None if estimate else _find_twin(done, history),
        ranks=_list_ranks(last),
        last=last,
        blocks=tuple(blocks),
        generations=generations,
    )
