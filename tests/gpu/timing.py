"""Times: the runtime's against torch.profiler's, what it costs a script, and what its diagnosis makes of them."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from statistics import fmean, median, stdev

from advisor.protocol.answers.advice import Diagnosis
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Block, BlockState
from advisor.tuning.explain.diagnosis import diagnose
from tests.gpu.bench import Bench, Trained
from tests.gpu.check import Judgement, NotPossible
from tests.gpu.launches import (
    REST,
    SLOW_LINK,
    TRAINING,
    LaunchFailed,
    count_options,
    need,
    race,
)
from tests.gpu.trace import Traced, read_trace

TRACE_TOLERANCE = 0.10
"""Of the step: the most that the runtime's figures and the trace's may differ."""
INTRUSION = 1.01
INTRUSION_INTERVAL = (0.99, 1.02)
STEP_MS = 5
TRAINER = 1.01
TRACED_STEPS = 50
_WARM = 16
"""Traced steps in which the runtime says hello and switches."""
_TRACED_RACE = {"warmup_steps": 3, "min_steps": 20, "max_steps": 20, "profile_steps": 8}
_ON_CARD, _ON_CPU = {"width": 2048, "layers": 8, "batch": 4096}, {"width": 256, "layers": 4, "batch": 64}
_TALKING = {"width": 4096, "layers": 4, "batch": 8}, {"width": 1024, "layers": 4, "batch": 4}
_COMPUTING = {"width": 512, "layers": 8, "batch": 131_072}, {"width": 64, "layers": 4, "batch": 8192}


def _record(
    bench: Bench,
    sizes: tuple[dict[str, int], dict[str, int]],
    variables: Mapping[str, str] | None = None,
) -> tuple[BlockResult, Traced]:
    """One block of the script as it stands, and what the profiler saw of the same steps."""
    steps = ["--trace-steps", TRACED_STEPS, "--steps", TRACED_STEPS + 5]
    options = [*count_options(bench.machine, *sizes), *steps]
    races = [race({"baseline": {}}, **_TRACED_RACE), REST]
    trained = bench.train(TRAINING, options, races, variables=variables)
    [result] = need(trained, "baseline")
    return result, read_trace(trained.trace, bench.machine.has_card, _WARM)


def check_timing(bench: Bench) -> Judgement:
    """Step, forward, backward and optimizer."""
    result, traced = _record(bench, (_ON_CARD, _ON_CPU))
    judgement = Judgement()
    step_s, phases = median(result.step_time_s), result.phases
    ours = {
        "step": step_s,
        "forward": phases.forward_s,
        "backward": phases.backward_s + (phases.exposed_comm_s or 0.0),
        "optimizer": phases.optimizer_s,
    }
    theirs = {
        "step": traced.step_s,
        "forward": traced.forward_s,
        "backward": traced.backward_s,
        "optimizer": traced.optimizer_s,
    }
    for name, seconds in ours.items():
        text = f"{name}: runtime {seconds * 1e3:.2f} ms, trace {theirs[name] * 1e3:.2f} ms"
        differ = abs(seconds - theirs[name]) / traced.step_s
        judgement.expect(
            differ <= TRACE_TOLERANCE,
            text,
            f"{text}: {differ:.0%} of the step apart, {TRACE_TOLERANCE:.0%} allowed.",
        )
    return judgement


def check_diagnosis(bench: Bench) -> Judgement:
    """A training that mostly communicates and one that mostly computes: both as the trace has them, and told apart."""
    judgement = Judgement()
    for name, sizes, is_talking in (("communicating", _TALKING, True), ("computing", _COMPUTING, False)):
        result, traced = _record(bench, sizes, SLOW_LINK if is_talking else None)
        found = _diagnose(result)
        held = next(finding for finding in found.findings if finding.bound == "communication")
        text = f"{name}: bound by {found.bound}, exposed communication {held.share:.0%} of the step"
        judgement.expect(
            held.holds == is_talking,
            text,
            f"{text}: it is {'not ' if is_talking else ''}taken for bound by communication.",
        )
        exposed_s = result.phases.exposed_comm_s
        if traced.exposed_s is None or exposed_s is None:
            judgement.left_out.append(
                f"{name}: {'the trace' if exposed_s else 'the runtime'} shows no communication."
            )
            continue
        share, traced_share = exposed_s / median(result.step_time_s), traced.exposed_s / traced.step_s
        text = f"{name}: exposed {share:.1%} of the step by the runtime, {traced_share:.1%} by the trace"
        judgement.expect(abs(share - traced_share) <= TRACE_TOLERANCE, text, f"{text}: too far apart.")
    return judgement


def _diagnose(result: BlockResult) -> Diagnosis:
    plan = race({"baseline": {}}).arms[0]
    block = Block(
        id="baseline", session_id="check", trial_number=0, ordinal=0, race=1, state=BlockState.DONE, plan=plan,
        result=result, issued_at=datetime(2000, 1, 1, tzinfo=UTC),
    )  # fmt: skip
    return diagnose([block])


def check_intrusion(bench: Bench) -> Judgement:
    """The runtime switched off and on between stretches of steps, inside one race that never ends."""
    endless = race({"baseline": {}}, min_steps=10**7, max_steps=10**7, target_s=1e9, profile_steps=0)
    options = [
        *count_options(bench.machine, {"stretches": 160}, {"stretches": 40, "width": 128}),
        "--step-ms",
        STEP_MS,
    ]
    trained = bench.train("switched.py", options, [endless])
    if trained.collect("measured") != [True]:
        raise LaunchFailed(f"The runtime was not at work in a race; {trained.describe_end()}")
    return judge_intrusion(trained)


def judge_intrusion(trained: Trained) -> Judgement:
    """Return the ratio of step times with and without the runtime, with an interval over neighbouring stretches."""
    stretches = [line for line in trained.notes.get(0, ()) if "on" in line]
    logs, off_s = [], []
    for first, second in zip(stretches[::2], stretches[1::2], strict=False):
        on, off = (first, second) if first["on"] else (second, first)
        logs.append(math.log(median(on["step_s"]) / median(off["step_s"])))
        off_s.append(median(off["step_s"]))
    if len(logs) < 2:
        raise LaunchFailed(f"{len(logs)} pairs of stretches were measured.")
    middle, half = fmean(logs), 2.0 * stdev(logs) / math.sqrt(len(logs))
    ratio, low, high = (math.exp(value) for value in (middle, middle - half, middle + half))
    judgement = Judgement()
    text = f"ratio {ratio:.4f} (95 % {low:.4f} … {high:.4f}, {len(logs)} pairs) at {median(off_s) * 1e3:.2f} ms a step"
    judgement.expect(ratio <= INTRUSION, text, f"{text}: more than {INTRUSION}.")
    within = INTRUSION_INTERVAL[0] <= low and high <= INTRUSION_INTERVAL[1]
    judgement.expect(
        within, "", f"{text}: the interval is not within {INTRUSION_INTERVAL[0]} … {INTRUSION_INTERVAL[1]}."
    )
    return judgement


def check_trainer(bench: Bench) -> Judgement:
    """A Trainer that compiles its model: as it stands, and in a race of the baseline; twice each, in turn."""
    if not bench.machine.has_transformers:
        raise NotPossible("The package transformers is not installed: pip install transformers accelerate.")
    options: list[object] = (
        [] if bench.machine.has_card else ["--backend", "eager", "--width", 64, "--steps", 60]
    )
    endless = race({"baseline": {}}, min_steps=10**7, max_steps=10**7, target_s=1e9, profile_steps=0)
    bare, tuned = [], []
    for _ in range(2):
        bare.append(bench.run_bare("trainer.py", options))
        tuned.append(bench.train("trainer.py", options, [endless]))
    times = [
        [time for trained in launches for time in trained.collect("step_s")[20:]]
        for launches in (bare, tuned)
    ]
    for launches, found in zip((bare, tuned), times, strict=True):
        if not found:
            raise LaunchFailed(launches[0].describe_end())
    ratio = median(times[1]) / median(times[0])
    judgement = Judgement()
    text = f"ratio {ratio:.4f}: {median(times[1]) * 1e3:.2f} ms with the runtime, {median(times[0]) * 1e3:.2f} without"
    judgement.expect(ratio <= TRAINER, text, f"{text}: more than {TRAINER}.")
    return judgement
