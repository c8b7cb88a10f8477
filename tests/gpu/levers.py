"""The levers that only a card shows at work, memory that is nearly full, snapshots, and several communicators."""

from collections import Counter
from statistics import median

from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Outcome
from tests.gpu.bench import Bench
from tests.gpu.check import Judgement
from tests.gpu.launches import (
    REST,
    TRAINING,
    LaunchFailed,
    count_options,
    expect_in_force,
    need,
    need_card,
    race,
)

FRACTION = 0.3
FRACTION_TOLERANCE = 0.02
"""Of the card: how far the allocator's reservation may be from what was asked."""
FILLED = 0.95
GIVEN_BACK_BYTES = 100 * 2**20
"""Device memory that may be in use after a session more than before."""
AMP_RATIO = 0.9
"""Step time of large matrices in bfloat16 over that in float32, at most."""
CUDNN_RATIO = 1.02
"""Step time with cuDNN's search over that without, at most."""
FRACTION_KNOB, SEARCH = "FLAGS_fraction_of_gpu_memory_to_use", "cudnn_exhaustive_search"
_LARGE, _SMALL = {"width": 2048, "layers": 6, "batch": 2048}, {"width": 64, "layers": 4, "batch": 16}
_CONVOLUTIONS = {"image": 56, "width": 64, "layers": 6, "batch": 32}
_HIERARCHY = {"use_hierarchical_allreduce": True, "hierarchical_allreduce_inter_nranks": 2}
_WELL = (Outcome.FINISHED,)


def check_memory_fraction(bench: Bench) -> Judgement:
    """Reserved and capped while it is in force, and given back after it."""
    need_card(bench)
    options = [*count_options(bench.machine, _LARGE, _SMALL), "--memory"]
    races = [race({"before": {}}), race({"reserved": {FRACTION_KNOB: FRACTION}}), race({"after": {}})]
    trained = bench.train(TRAINING, options, races)
    _, reserved, _ = need(trained, "before", "reserved", "after")
    judgement = Judgement()
    expect_in_force(judgement, reserved, FRACTION_KNOB)
    shares = [line["reserved"] / line["total"] for line in trained.notes.get(0, ()) if "reserved" in line]
    text = f"the allocator holds {shares[0]:.1%} of the card, {max(shares):.1%} under {FRACTION:.0%}"
    judgement.expect(
        FRACTION - FRACTION_TOLERANCE <= max(shares) <= FRACTION + FRACTION_TOLERANCE, text, f"{text}."
    )
    return judgement


def _race_against_baseline(bench: Bench, knob: str, *extra: object) -> tuple[Judgement, BlockResult, float]:
    """One knob switched on against the baseline: in force, and the ratio of step times."""
    options = [*count_options(bench.machine, _LARGE, _SMALL), *extra]
    plan = race({"baseline": {}, "tuned": {knob: True}}, min_steps=40, max_steps=40)
    baseline, tuned = need(bench.train(TRAINING, options, [plan]), "baseline", "tuned")
    judgement = Judgement()
    expect_in_force(judgement, tuned, knob)
    if tuned.diverged:
        judgement.faults.append(f"The loss was not finite under {knob}.")
    if not tuned.step_time_s or not baseline.step_time_s:
        return judgement, tuned, float("nan")
    ratio = median(tuned.step_time_s) / median(baseline.step_time_s)
    judgement.note(f"step time × {ratio:.3f}")
    return judgement, tuned, ratio


def check_amp(bench: Bench) -> Judgement:
    """In force, finite, and faster: large matrices are what tensor cores are for."""
    judgement, _, ratio = _race_against_baseline(bench, "amp")
    if bench.machine.has_card:
        judgement.expect(
            ratio <= AMP_RATIO, "", f"Steps take × {ratio:.3f} in bfloat16; at most {AMP_RATIO} expected."
        )
    return judgement


def check_compile(bench: Bench) -> Judgement:
    """In force: what it brings is noted."""
    need_card(bench)
    return _race_against_baseline(bench, "fuse_elewise_add_act_ops")[0]


def check_optimizer(bench: Bench) -> Judgement:
    """In force: what it brings is noted."""
    return _race_against_baseline(bench, "fuse_all_optimizer_ops")[0]


def check_cudnn(bench: Bench) -> Judgement:
    """A launch with the search from its start is no slower; switched while it runs, it is sent to a launch."""
    need_card(bench)
    options = count_options(bench.machine, _CONVOLUTIONS, _CONVOLUTIONS)
    toggled = bench.train(TRAINING, options, [race({"baseline": {}}), race({"toggled": {SEARCH: True}})])
    baseline, switched = need(toggled, "baseline", "toggled")
    started = bench.train(
        TRAINING, options, [race({"searching": {SEARCH: True}})], cold=Changes({SEARCH: True})
    )
    [searching] = need(started, "searching")
    judgement = Judgement()
    expect_in_force(judgement, searching, SEARCH)
    sentence = switched.relaunch_needed or switched.not_consumed.get(SEARCH, "")
    judgement.expect(
        bool(sentence), f"toggled: {sentence}", f"{SEARCH} was switched live, where it does nothing."
    )
    if searching.step_time_s:
        ratio = median(searching.step_time_s) / median(baseline.step_time_s)
        text = f"step time × {ratio:.3f} with the search from the start"
        judgement.expect(ratio <= CUDNN_RATIO, text, f"{text}: at most {CUDNN_RATIO} expected.")
    return judgement


def check_snapshots(bench: Bench) -> Judgement:
    """After a block of another arithmetic, model and optimizer hold the very bits of before, on every rank."""
    options = [*count_options(bench.machine, {**_SMALL, "width": 512}, _SMALL), "--digests", "--steps", 60]
    trained = bench.train(TRAINING, options, [race({"half": {"amp": True}}), REST])
    [half] = need(trained, "half")
    judgement = Judgement()
    expect_in_force(judgement, half, "amp")
    restored = []
    for rank in sorted(trained.notes):
        digests = trained.collect("digest", rank)
        twice = [digest for digest, count in Counter(digests).items() if count == 2]
        restored.append(twice[0] if len(twice) == 1 else f"none of rank {rank}")
        judgement.expect(
            len(twice) == 1 and len(set(digests)) == len(digests) - 1,
            f"rank {rank}: {len(digests)} states, {len(twice)} of them twice",
            f"Rank {rank} did not come back to exactly the state of before the block, and only to that.",
        )
    judgement.expect(len(set(restored)) == 1 < len(restored), "", "The ranks came back to different states.")
    return judgement


def check_memory(bench: Bench) -> Judgement:
    """With 95 % of the card in use: every knob that takes memory is measured or refused, and the training goes on."""
    need_card(bench)
    asked: dict[str, dict[str, bool | int | float]] = {
        "fraction": {FRACTION_KNOB: 0.9},
        "communicators": {"nccl_comm_num": 4, "sync_nccl_allreduce": False},
        "amp": {"amp": True},
        "compile": {"fuse_elewise_add_act_ops": True},
    }
    options = [*count_options(bench.machine, {**_SMALL, "width": 1024}, _SMALL), "--fill", FILLED]
    races = [race({"links": {}}, calibrate=True), *(race({name: knobs}) for name, knobs in asked.items())]
    trained = bench.train(TRAINING, options, races)
    judgement = Judgement()
    judgement.expect(
        trained.outcome in _WELL,
        "",
        f"With {FILLED:.0%} of the card in use the session ended: {trained.describe_end()}",
    )
    for name, knobs in asked.items():
        result = trained.results.get(name)
        if result is None:
            judgement.faults.append(f"{name} was neither measured nor refused.")
            continue
        refusal = next(iter(result.not_consumed.values()), result.relaunch_needed)
        judgement.note(f"{name}: {f'refused: {refusal}' if refusal else f'{result.steps} steps measured'}")
        if not refusal and not set(knobs) <= set(result.consumed) | set(result.no_effect):
            judgement.faults.append(f"{name}: nothing says whether it was in force.")
    return judgement


def check_communicators(bench: Bench) -> Judgement:
    """Two and four communicators and two levels: no hang, and the card's memory given back after the session."""
    judgement, cards = Judgement(), len(bench.machine.cards)
    for ranks in [cards, 4] if 2 <= cards < 4 else [4]:
        _race_communicators(bench, judgement, ranks)
    return judgement


def _race_communicators(bench: Bench, judgement: Judgement, ranks: int) -> None:
    buckets = {"fuse_grad_size_in_MB": 1.0 if bench.machine.has_card else 0.01}
    arms: dict[str, dict[str, bool | int | float]] = {
        "two": {**buckets, "nccl_comm_num": 2, "sync_nccl_allreduce": False},
        "four": {**buckets, "nccl_comm_num": 4, "sync_nccl_allreduce": False},
    }
    if ranks == 4:
        arms["levels"] = {**buckets, **_HIERARCHY}
    before = _count_memory(bench)
    options = count_options(bench.machine, {**_LARGE, "batch": 64}, _SMALL)
    trained = bench.train(TRAINING, options, [race({"baseline": {}, **arms})], ranks=ranks)
    try:
        results = need(trained, "baseline", *arms)
    except LaunchFailed as failed:
        judgement.faults.append(f"{ranks} ranks: {failed}")
        return
    base = median(results[0].step_time_s)
    for (name, knobs), result in zip(arms.items(), results[1:], strict=True):
        expect_in_force(
            judgement, result, *(knob for knob in knobs if knob not in (*buckets, "sync_nccl_allreduce"))
        )
        if result.step_time_s:
            judgement.note(f"{ranks} ranks, {name}: step time × {median(result.step_time_s) / base:.3f}")
    judgement.expect(
        trained.outcome in _WELL, "", f"{ranks} ranks: the session ended: {trained.describe_end()}"
    )
    if before is None:
        return
    more = (_count_memory(bench) or 0) - before
    text = f"{ranks} ranks: {more / 2**20:.0f} MiB more in use after the session"
    judgement.expect(more <= GIVEN_BACK_BYTES, text, f"{text}: {GIVEN_BACK_BYTES / 2**20:.0f} are allowed.")


def _count_memory(bench: Bench) -> int | None:
    reading = bench.sample() if bench.machine.has_card else None
    return sum(device.memory_bytes for device in reading.devices) if reading and reading.devices else None
