"""History -> the answer to a race of two commands: what each side is, what its launches cost, and what else differs."""

import shlex
from collections.abc import Callable, Sequence
from statistics import fmean

from advisor.protocol.answers.advice import Advice
from advisor.protocol.answers.raced import Gain, RaceAnswer, RacedSide
from advisor.protocol.asked.jobs import Job
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.trials import Block, JobHistory, Session, Trial
from advisor.protocol.states import Verdict
from advisor.protocol.training.own_knobs import OwnKnob
from advisor.protocol.training.workload import WorkloadKind
from advisor.tuning.explain.raced_differences import compare_courses, list_different_work
from advisor.tuning.explain.raced_steps import list_lesser_steps
from advisor.tuning.measure.phases import pool_phases


def find_command_knob(job: Job) -> OwnKnob | None:
    """Return the knob whose values are the commands of a race; None for other jobs."""
    return next((knob for knob in job.spec.workload.own if knob.is_command and len(knob.values) == 2), None)


def build_race(job: Job, history: JobHistory, advice: Advice, knob: OwnKnob) -> RaceAnswer:
    """Return what the job's races say of its two commands."""
    name_a, name_b = (str(value) for value in knob.values)
    blocks_a, blocks_b = (_list_blocks(history, knob.name, name) for name in ("", name_b))
    launches_a, launches_b = (_list_launches(history, knob.name, name) for name in ("", name_b))
    facts_a = job.facts
    facts_b = next((session.facts for session in launches_b if session.facts is not None), None)
    gain, rate = advice.gain, advice.baseline_samples_per_s
    a, b = (
        RacedSide(
            command=shlex.join(knob.words[name]),
            rate=speed,
            rate_unit=advice.rate_unit,
            account=pool_phases(blocks) if blocks else None,
            samples_per_step=_mean_of(blocks, lambda block: block.result.samples_per_step if block.result else 0),
            forwards_per_step=facts.microbatches_per_step if facts else None,
            sources=facts.sources if facts else {},
        )
        for name, speed, blocks, facts in (
            (name_a, rate or None, blocks_a, facts_a),
            (name_b, rate * gain.ratio if gain and rate else None, blocks_b, facts_b),
        )
    )  # fmt: skip
    work = tuple(list_different_work(a, b, facts_a, facts_b))
    is_same_batch = not any(one.name in {"batch", "accumulation"} for one in work)
    ratio = gain.ratio if gain else 1.0
    courses = compare_courses(
        blocks_a, blocks_b, launches_a, launches_b, ratio, is_same_batch=is_same_batch
    )  # fmt: skip
    differences = (*work, *list_lesser_steps(blocks_a, blocks_b), *courses)
    answer = RaceAnswer(
        job_id=job.id,
        verdict=advice.verdict,
        gain=gain
        and Gain(low=gain.low, likely=gain.ratio, high=gain.high, rounds=gain.rounds, launches=gain.sessions),
        because=advice.headline,
        what_to_do=advice.what_to_do,
        cost=advice.cost,
        a=a,
        b=b,
        differences=differences,
        verify_again=_say_again(job, knob, a, b),
    )
    return _doubt(answer, knob)


def _doubt(answer: RaceAnswer, knob: OwnKnob) -> RaceAnswer:
    """A command that was said to be exact and is seen to be other work is not shown to be faster by its samples, and
    one that misleads in no case."""
    misled = [one for one in answer.differences if one.misleads]
    other = (
        [one for one in answer.differences if one.is_other_work] if knob.effect is Effect.EXACT else misled
    )
    if answer.verdict is not Verdict.CHANGE or not other:
        return answer
    seen = " ".join(one.sentence for one in other)
    said = (
        "B was said to be exact, and it is other work than A:"
        if knob.effect is Effect.EXACT
        else "No gain is shown:"
    )
    what_to_do = (
        "Let B do in a step what A does, and race it again."
        if misled
        else "Race it with --effect convergence, which holds losses at equal samples against each other."
    )
    told = {
        "verdict": Verdict.UNDECIDED,
        "because": f"{said} {seen} {answer.because}",
        "what_to_do": what_to_do,
    }
    return answer.model_copy(update=told)


def _list_blocks(history: JobHistory, knob: str, value: str) -> list[Block]:
    """The measured blocks of one command; "" is the baseline's."""
    numbers = {trial.number for trial in history.trials if _is_of(trial, knob, value)}
    return [block for block in history.done_blocks() if block.trial_number in numbers]


def _is_of(trial: Trial, knob: str, value: str) -> bool:
    return str(trial.changes.get(knob, "")) == value


def _list_launches(history: JobHistory, knob: str, value: str) -> list[Session]:
    return [session for session in history.sessions if str(session.cold.get(knob, "")) == value]


def _mean_of(blocks: Sequence[Block], read: Callable[[Block], float]) -> float | None:
    found = [value for block in blocks if (value := read(block)) > 0]
    return fmean(found) if found else None


def _say_again(job: Job, knob: OwnKnob, a: RacedSide, b: RacedSide) -> str:
    minutes = job.spec.budget.max_seconds / 60.0
    effect = knob.effect or Effect.CONVERGENCE
    words = ["advisor", "race", "--minutes", f"{minutes:g}", "--effect", effect.value]
    words += ["--min-gain", f"{job.spec.min_gain * 100:g}"]
    if job.spec.workload.kind is not WorkloadKind.PYTORCH:
        words += ["--kind", job.spec.workload.kind.value]
    if job.spec.nodes > 1:
        words += ["--nodes", str(job.spec.nodes)]
    return shlex.join([*words, a.command, b.command])
