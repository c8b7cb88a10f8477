"""What the runtime saw of two raced programs -> what differs between them besides their speed."""

from collections.abc import Iterable, Sequence
from statistics import fmean, median

from advisor.protocol.answers.raced import Difference, RacedSide, tell_difference
from advisor.protocol.gains import spell_share
from advisor.protocol.measured.trials import Block, Session
from advisor.protocol.training.workload import WorkloadFacts, list_changed_files

_APART = 0.02
"""Share by which two counts differ that are told as different."""
_EVALUATES = 0.01
"""Share of steps with an evaluation from which on it is worth telling that the other side has others."""
_NO_BACKWARD = 0.1
"""Share of A's backward below which B is said to have none."""
_OTHER_INPUT = 1.2
"""Factor by which what a model is given for a sample has to differ: padding makes it vary."""
_OTHER_CLOCK = 1.25
"""Factor between the sides; live blocks of one script lay within 1.02 to 1.19, means of two within 1.10."""
_FEWEST_SECONDS = 1.0
"""Measured seconds of a block below which what surrounds its steps is most of its time."""
_BY_CHANCE = 3
"""Evaluations or saves by which launches of one script differ, depending on where they begin and end."""
_LONGER_START_S = 5.0
_FIRST_LOSSES = 4
_SAME_LOSS = 1e-3
"""Relative difference of the first losses below which two launches are held to train on the same data."""
_MOST_NAMED = 3


def list_different_work(
    a: RacedSide, b: RacedSide, facts_a: WorkloadFacts | None, facts_b: WorkloadFacts | None
) -> Iterable[Difference]:
    """Yield what the runtime saw to differ between the two programs."""
    if _are_apart(a.samples_per_step, b.samples_per_step):
        yield tell_difference(
            "batch", f"{a.samples_per_step:g}", f"{b.samples_per_step:g}",
            "B trains on {b} samples in a step of its optimizer, A on {a}.", is_other_work=True,
        )  # fmt: skip
    account_a, account_b = a.account, b.account
    if account_a and account_b and account_b.backward_s < _NO_BACKWARD * account_a.backward_s:
        yield tell_difference(
            "backward", f"{account_a.backward_s * 1e3:.1f} ms", f"{account_b.backward_s * 1e3:.1f} ms",
            "A step of B spends {b} in backward passes, one of A {a}: B hardly learns.", is_other_work=True,
        )  # fmt: skip
    if facts_a is None or facts_b is None:
        return
    if told := [name for name, facts in (("A", facts_a), ("B", facts_b)) if facts.tells_samples]:
        yield tell_difference(
            "counting", _say_counted(facts_a), _say_counted(facts_b),
            f"{' and '.join(told)} itself said how many samples its steps have: nothing here counted them.",
            is_other_work=facts_b.tells_samples,
        )  # fmt: skip
    given_a, given_b = _measure_given(facts_a), _measure_given(facts_b)
    if min(given_a, given_b) > 0 and max(given_a, given_b) > _OTHER_INPUT * min(given_a, given_b):
        yield tell_difference(
            "input", f"{given_a:g}", f"{given_b:g}",
            "For each sample B's model is given {b} numbers, A's {a}.", is_other_work=True,
        )  # fmt: skip
    if _are_apart(facts_a.microbatches_per_step, facts_b.microbatches_per_step):
        yield tell_difference(
            "accumulation", f"{facts_a.microbatches_per_step:g}", f"{facts_b.microbatches_per_step:g}",
            "B takes an optimizer step for every {b} forward passes, A for every {a}.", is_other_work=True,
        )  # fmt: skip
    if facts_a.gradient_bytes != facts_b.gradient_bytes:
        yield tell_difference(
            "parameters", f"{facts_a.gradient_bytes:,}", f"{facts_b.gradient_bytes:,}",
            "B computes {b} bytes of gradients in a step, A {a}: they train different parameters.", is_other_work=True,
        )  # fmt: skip
    if facts_a.gradient_dtype != facts_b.gradient_dtype:
        yield tell_difference(
            "gradients", facts_a.gradient_dtype, facts_b.gradient_dtype,
            "B's gradients are {b}, A's {a}.", is_other_work=True,
        )  # fmt: skip
    if set(facts_a.optimizers) != set(facts_b.optimizers):
        yield tell_difference(
            "optimizer", _join(facts_a.optimizers), _join(facts_b.optimizers),
            "B steps with {b}, A with {a}.", is_other_work=True,
        )  # fmt: skip
    if facts_a.world_size != facts_b.world_size:
        yield tell_difference(
            "ranks", str(facts_a.world_size), str(facts_b.world_size),
            "B trains on {b} ranks, A on {a}."
        )  # fmt: skip
    places = [facts.device_name or facts.device.value for facts in (facts_a, facts_b)]
    beside = (
        ("device", places, "B trains on {b}, A on {a}."),
        ("software", [_name_software(facts) for facts in (facts_a, facts_b)], "B runs on {b}, A on {a}."),
        ("loader", [_name_loader(facts) for facts in (facts_a, facts_b)], "B's loader has {b}, A's {a}."),
    )
    for name, (one, other), sentence in beside:
        if one != other:
            yield tell_difference(name, one, other, sentence, is_other_work=False)
    if changed := _list_changed(facts_a.sources, facts_b.sources):
        named = ", ".join(changed[:_MOST_NAMED]) + (", …" if len(changed) > _MOST_NAMED else "")
        digests = [
            ", ".join(facts.sources.get(name, "none") for name in changed[:_MOST_NAMED])
            for facts in (facts_a, facts_b)
        ]
        yield tell_difference(
            "script", digests[0], digests[1], f"The script is another one: {named}.", is_other_work=False
        )


def compare_courses(
    blocks_a: Sequence[Block],
    blocks_b: Sequence[Block],
    launches_a: Sequence[Session],
    launches_b: Sequence[Session],
    ratio: float,
    *,
    is_same_batch: bool,
) -> Iterable[Difference]:
    """Yield what differs in how the two trainings went on: beginning, evaluation, data, and where they end.

    `ratio` is B's likeliest throughput over A's in the steps that count.
    """
    share_a, share_b = _share_of_evaluation(blocks_a), _share_of_evaluation(blocks_b)
    whole = _compare_whole_steps(blocks_a, blocks_b)
    made_b = sum(b.result.excluded_steps for b in blocks_b if b.result)
    expected = share_a * sum(b.result.steps + b.result.excluded_steps for b in blocks_b if b.result)
    is_often = made_b > 2.0 * expected + _BY_CHANCE
    if is_often and ratio > 1.0 and whole - 1.0 < (ratio - 1.0) / 2.0:
        yield tell_difference(
            "evaluation", spell_share(share_a, 1), spell_share(share_b, 1),
            "B evaluates or saves in {b} of its steps, A in {a}. Such steps are left out on both sides; with them B "
            f"is {whole:.2f} times as fast: they do the work of the others.",
            misleads=True,
        )  # fmt: skip
    elif max(share_a, share_b) > _EVALUATES and abs(share_a - share_b) > max(share_a, share_b) / 4:
        yield tell_difference(
            "evaluation", spell_share(share_a, 1), spell_share(share_b, 1),
            "B evaluates or saves in {b} of its steps, A in {a}; such steps are left out on both sides.",
        )  # fmt: skip
    start_a, start_b = _measure_start(blocks_a, launches_a), _measure_start(blocks_b, launches_b)
    if start_a and start_b and start_b > start_a + max(_LONGER_START_S, start_a / 2.0):
        yield tell_difference(
            "start", f"{start_a:.0f} s", f"{start_b:.0f} s",
            "B is launched for {b} before its first measured step, A for {a}: that is not in the gain.",
        )  # fmt: skip
    clock_a, clock_b = _measure_clock(blocks_a), _measure_clock(blocks_b)
    if clock_a and clock_b and clock_b > _OTHER_CLOCK * clock_a:
        yield tell_difference(
            "clock", f"{clock_a:.1f}", f"{clock_b:.1f}",
            "By the server's clock B's steps took {b} times what they were measured to take, A's {a} times: B's clock, "
            "or what it does between the steps that count, is another.",
            misleads=True,
        )  # fmt: skip
    first_a, first_b = _list_first_losses(blocks_a), _list_first_losses(blocks_b)
    # The losses of other batches are others, which is told as such.
    if (
        is_same_batch
        and len(first_a) > 1
        and first_b
        and _spread(first_a) < _SAME_LOSS < _distance(first_a[0], first_b[0])
    ):
        yield tell_difference(
            "data", f"{first_a[0][0]:.5g}", f"{first_b[0][0]:.5g}",
            "B's first losses are others ({b}, and {a} in every launch of A): B begins elsewhere, computes something "
            "else, or trains on other data or in another order.",
            is_other_work=True,
        )  # fmt: skip
    ends_a, ends_b = (
        [s.total_steps for s in launches if s.total_steps] for launches in (launches_a, launches_b)
    )
    if ends_a and ends_b and _are_apart(max(ends_a), max(ends_b)):
        yield tell_difference(
            "steps", str(max(ends_a)), str(max(ends_b)),
            "B's script ends by itself after {b} steps, A's after {a}."
        )  # fmt: skip


def _are_apart(a: float | None, b: float | None) -> bool:
    return a is not None and b is not None and abs(a - b) > _APART * max(a, b)


def _join(words: Iterable[str]) -> str:
    return ", ".join(sorted(set(words))) or "none"


def _name_software(facts: WorkloadFacts) -> str:
    named = {"torch": facts.torch_version, "python": facts.python_version, **facts.software}
    return ", ".join(f"{name} {version}" for name, version in named.items() if version)


def _name_loader(facts: WorkloadFacts) -> str:
    loader = facts.dataloader
    if loader is None:
        return "no DataLoader"
    return ", ".join(f"{name}={value}" for name, value in loader.items())


def _list_changed(a: dict[str, str], b: dict[str, str]) -> list[str]:
    """Files that ran on both sides in two versions; where they share no name, those whose content only one side ran."""
    if a and b and not a.keys() & b.keys():
        return sorted(
            name for one, other in ((a, b), (b, a)) for name in one if one[name] not in other.values()
        )
    return list_changed_files(a, b)


def _say_counted(facts: WorkloadFacts) -> str:
    return "told by the script" if facts.tells_samples else "counted"


def _measure_given(facts: WorkloadFacts) -> float:
    """Numbers that the model is given for each sample; 0 where that is not known."""
    samples = facts.batch_size_per_rank
    return facts.numbers_per_step / samples if samples > 0 else 0.0


def _measure_clock(blocks: Sequence[Block]) -> float | None:
    """The server's seconds for a step over the measured ones, over the blocks that are long enough; None for none."""
    found = []
    for block in blocks:
        result = block.result
        if result is None or block.finished_at is None or result.wall_s < _FEWEST_SECONDS:
            continue
        made = result.steps + result.excluded_steps + result.warmup_steps
        whole_s = (block.finished_at - block.issued_at).total_seconds()
        found.append(whole_s / made * result.steps / result.wall_s)
    return fmean(found) if found else None


def _compare_whole_steps(blocks_a: Sequence[Block], blocks_b: Sequence[Block]) -> float:
    """B's throughput over A's with the steps that are left out; 1 where it is not known."""
    rates = [
        sum(r.samples_per_step for r in results) / whole_s
        for results in ([b.result for b in blocks if b.result] for blocks in (blocks_a, blocks_b))
        if (whole_s := sum(r.phases.total_s() for r in results)) > 0.0
    ]
    return rates[1] / rates[0] if len(rates) == 2 and rates[0] > 0.0 else 1.0


def _measure_start(blocks: Sequence[Block], launches: Sequence[Session]) -> float | None:
    """Seconds from a launch to its first block: its median; None where none is known."""
    found = []
    for launch in launches:
        first = min((b.issued_at for b in blocks if b.session_id == launch.id), default=None)
        if first is not None and launch.started_at is not None:
            found.append((first - launch.started_at).total_seconds())
    return median(found) if found else None


def _share_of_evaluation(blocks: Sequence[Block]) -> float:
    results = [block.result for block in blocks if block.result]
    whole = sum(result.steps + result.excluded_steps for result in results)
    return sum(result.excluded_steps for result in results) / whole if whole else 0.0


def _list_first_losses(blocks: Sequence[Block]) -> list[tuple[float, ...]]:
    """The first losses of each launch that show as many."""
    firsts: dict[str, tuple[float, ...]] = {}
    for block in sorted(blocks, key=lambda block: block.ordinal):
        if block.result and len(block.result.losses) >= _FIRST_LOSSES:
            firsts.setdefault(block.session_id, block.result.losses[:_FIRST_LOSSES])
    return list(firsts.values())


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    """The largest relative difference of two courses' losses."""
    return max(
        abs(x - y) / max(abs(x), abs(y), 1e-12) for x, y in zip(one, other, strict=True)
    )  # fmt: skip


def _spread(courses: Sequence[Sequence[float]]) -> float:
    return max(_distance(courses[0], other) for other in courses[1:])
