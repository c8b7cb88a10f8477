"""NCCL's settings: of one communicator, switched while a training runs, and its choices through our tuner plugin."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from tests.gpu.bench import Bench, Trained
from tests.gpu.check import Judgement, NotPossible
from tests.gpu.launches import (
    TRAINING,
    LaunchFailed,
    count_options,
    expect_in_force,
    need,
    need_card,
    race,
)

KEPT_BYTES = 100 * 2**20
"""What a communicator may keep after it was destroyed."""
BEATEN = "NCCL_MAX_CTAS"
ARMS: Mapping[str, Mapping[str, Value]] = {
    "fewest": {"NCCL_MIN_CTAS": 16},
    "most": {"NCCL_MAX_CTAS": 2},
    "clusters": {"NCCL_CGA_CLUSTER_SIZE": 2},
}
ALLREDUCE, CHANNELS = "nccl_tuner_allreduce", "nccl_tuner_channels"
SURE: tuple[Mapping[str, Value], ...] = (
    {ALLREDUCE: "ring/simple"},
    {ALLREDUCE: "ring/ll"},
    {ALLREDUCE: "ring/simple", CHANNELS: 2},
)
"""What NCCL can do between any two cards."""
UNSURE: tuple[Mapping[str, Value], ...] = ({ALLREDUCE: "tree/simple"}, {ALLREDUCE: "nvls/simple"})
"""What NCCL may mark as impossible between them; then it is noted."""
_LARGE = {"width": 2048, "layers": 6, "batch": 64}


def _count_ranks(bench: Bench) -> int:
    """One for each card, and at least two: one rank sends nothing."""
    return max(2, len(bench.machine.cards))


def check_channels(bench: Bench) -> Judgement:
    """Kernels have the blocks that their communicator was made with; a variable beats that; arms are in force."""
    need_card(bench)
    judgement = Judgement()
    # The in-switch reduction counts its channels by itself.
    rings = {"NCCL_NVLS_ENABLE": "0"}
    for line in _run_settings(bench, rings):
        _judge_settings(judgement, line)
    for line in _run_settings(bench, {**rings, BEATEN: "1"}):
        most = max(line["blocks"], default=0)
        text = f"{_say(line['asked'])} under {BEATEN}=1: {most} blocks"
        judgement.expect(
            most == 1, text, f"{text}: the variable beats a communicator's own setting, so 1 is expected."
        )
    _race_arms(bench, judgement)
    return judgement


def _run_settings(bench: Bench, variables: Mapping[str, str]) -> list[Mapping[str, Any]]:
    ran = bench.run_bare("nccl_settings.py", [], ranks=2, variables=variables)
    lines = [line for line in ran.notes.get(0, ()) if "asked" in line]
    if not lines or ran.code:
        raise LaunchFailed(f"Communicators with settings of their own: {ran.describe_end()}")
    return lines


def _judge_settings(judgement: Judgement, line: Mapping[str, Any]) -> None:
    asked, blocks = line["asked"], line["blocks"]
    name = _say(asked)
    judgement.expect(bool(line["is_right"]), "", f"An allreduce with {name} gave a wrong sum.")
    judgement.expect(bool(blocks), "", f"The trace shows no kernel of NCCL's with {name}.")
    least, most = asked.get("min_ctas", 1), asked.get("max_ctas", 64)
    text = f"{name}: {min(blocks, default=0)} to {max(blocks, default=0)} blocks"
    judgement.expect(
        all(least <= count <= most for count in blocks), text, f"{text}; {least} to {most} are expected."
    )
    kept = line["kept_bytes"]
    text = f"{name}: takes {line['taken_bytes'] / 2**20:.0f} MiB and keeps {kept / 2**20:.0f}"
    judgement.expect(kept <= KEPT_BYTES, text, f"{text}: {KEPT_BYTES / 2**20:.0f} may be kept.")


def _race_arms(bench: Bench, judgement: Judgement) -> None:
    options = count_options(bench.machine, _LARGE, _LARGE)
    trained = bench.train(TRAINING, options, [race({"baseline": {}, **ARMS})], ranks=_count_ranks(bench))
    baseline, *results = need(trained, "baseline", *ARMS)
    for (name, knobs), result in zip(ARMS.items(), results, strict=True):
        [knob] = knobs
        refusal = trained.refusals.get(knob)
        if refusal:
            judgement.left_out.append(f"{knob}: {refusal}")
            continue
        expect_in_force(judgement, result, knob)
        said = result.consumed.get(knob, "")
        judgement.expect(
            not said or "of their own" in said,
            "",
            f"{knob} was not switched, but stood there already: {said}",
        )
        if result.step_time_s and baseline.step_time_s:
            judgement.note(
                f"{name}: step time × {median(result.step_time_s) / median(baseline.step_time_s):.3f}"
            )


def check_tuner(bench: Bench) -> Judgement:
    """A training launched with each choice: NCCL loads the plugin and takes the choice, or is known not to have it."""
    need_card(bench)
    judgement = Judgement()
    for knobs in (*SURE, *UNSURE):
        trained = _train_with(bench, knobs)
        refusal = next((trained.refusals[knob] for knob in knobs if knob in trained.refusals), "")
        if refusal:
            raise NotPossible(refusal)
        [result] = need(trained, "tuned")
        impossible = knobs in UNSURE and " chose " in (why := result.not_consumed.get(ALLREDUCE, ""))
        if impossible:
            judgement.left_out.append(f"{_say(knobs)}: {why}")
            continue
        expect_in_force(judgement, result, *knobs)
        judgement.expect(not result.diverged, "", f"The loss was not finite under {_say(knobs)}.")
        if result.step_time_s:
            judgement.note(f"{_say(knobs)}: {median(result.step_time_s) * 1e3:.3g} ms a step")
    return judgement


def _train_with(bench: Bench, knobs: Mapping[str, Value]) -> Trained:
    options = count_options(bench.machine, _LARGE, _LARGE)
    plan = race({"tuned": knobs})
    return bench.train(TRAINING, options, [plan], ranks=_count_ranks(bench), cold=Changes(knobs))


def _say(asked: Mapping[str, Value]) -> str:
    return ", ".join(f"{name} {value}" for name, value in asked.items()) or "nothing asked"
