"""What was weighed in the steps of two raced programs (`RaceRules.weighs`) -> in what a step of B does less than A's.

B doing more is its own affair: it makes B slower. Where B does less, its samples are not A's.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, stdev

from advisor.protocol.answers.raced import Difference, tell_difference
from advisor.protocol.gains import spell_share
from advisor.protocol.measured.results import BlockResult, StepWork
from advisor.protocol.measured.trials import Block

_LESS = 0.05
"""Share by which B has to do less."""
_ERRORS = 3.0
"""Standard errors of that difference beyond which it is none of the batches' lengths."""
_FEWER_NUMBERS = 0.25
"""Share by which fewer single numbers have to be trained: units that no sample reaches come and go."""
_FEWER_RANDOM = 0.25
"""Share by which B has to draw fewer random numbers: layers that are left out by dice vary as well."""
_MORE_REPEATED = 0.25
"""Share of batches by which B has to repeat more: a short epoch that is not shuffled repeats some by chance."""
_LESS_VARIED = 0.3
"""Share of A's least variety under which B's batches are one batch with noise."""
_ALL_LOSSES = 0.99
_MOST = 0.5
"""Of the parameters and steps, for what is done beside: an average that is updated now and then may miss few steps."""


def list_lesser_steps(blocks_a: Sequence[Block], blocks_b: Sequence[Block]) -> Iterator[Difference]:
    """Yield what a step of B computes, learns from or changes less than one of A."""
    results_a, results_b = (
        [block.result for block in blocks if block.result] for blocks in (blocks_a, blocks_b)
    )
    yield from _compare_losses(results_a, results_b)
    work_a, work_b = (
        [result.work for result in results if result.work] for results in (results_a, results_b)
    )
    if not work_a or not work_b:
        if results_a and results_b and (work_a or work_b):
            yield tell_difference(
                "work", _say_weighed(work_a), _say_weighed(work_b),
                f"What a step computes and changes was not compared: {'B' if work_a else 'A'}'s script ended before.",
            )  # fmt: skip
        return
    yield from _compare_operations(results_a, results_b)
    for read, less, sentence in _SHARES:
        share_a, share_b = (fmean(map(read, works)) for works in (work_a, work_b))
        if share_b < (1.0 - less) * share_a:
            yield tell_difference(
                "learning", spell_share(share_a, 0), spell_share(share_b, 0), sentence, is_other_work=True
            )  # fmt: skip
    yield from _compare_beside(work_a, work_b)
    passes_a, passes_b = (fmean(work.backward_passes for work in works) for works in (work_a, work_b))
    if passes_b < (1.0 - _LESS) * passes_a:
        yield tell_difference(
            "backward", f"{passes_a:.2g}", f"{passes_b:.2g}",
            "B makes {b} backward passes for each forward pass, A {a}.", is_other_work=True,
        )  # fmt: skip
    # Of all launches of A that which repeated most: shorter warm-ups look at fewer batches.
    repeated_a, repeated_b = max(work.repeated for work in work_a), fmean(work.repeated for work in work_b)
    if repeated_b > repeated_a + _MORE_REPEATED:
        yield tell_difference(
            "batches", spell_share(repeated_a, 0), spell_share(repeated_b, 0),
            "{b} of the batches that B's model is given were given to it, or to another rank's, before, with noise or "
            "without; of A's {a}: its losses are of samples that it knows.",
            misleads=True,
        )  # fmt: skip
    variety_a, variety_b = (
        min((work.variety for work in works if work.variety), default=0.0) for works in (work_a, work_b)
    )
    if 0.0 < variety_b < _LESS_VARIED * variety_a:
        yield tell_difference(
            "batches", spell_share(variety_a, 0), spell_share(variety_b, 0),
            "From batch to batch what B's model is given varies by {b} of what it varies at all, what A's is given by "
            "{a}: its losses are of samples that it knows.",
            misleads=True,
        )  # fmt: skip
    if any(work.ranks_apart for work in work_b) and not any(work.ranks_apart for work in work_a):
        yield tell_difference(
            "exchange", "equal", "different",
            "B's ranks hold different parameters: they do not exchange every gradient, so that each trains a model of "
            "its own.",
            is_other_work=True,
        )  # fmt: skip


_SHARES: tuple[tuple[Callable[[StepWork], float], float, str], ...] = (
    (
        lambda work: work.with_gradient,
        _LESS,
        "Gradients reach {b} of the parameters of B's model, and {a} of A's.",
    ),
    (lambda work: work.moved, _LESS, "A step of B changes {b} of its model's parameters, one of A {a}."),
    (
        lambda work: work.numbers_with_gradient,
        _FEWER_NUMBERS,
        "Of the single numbers of B's parameters {b} have a gradient other than 0, of A's {a}.",
    ),
    (
        lambda work: work.numbers_moved,
        _FEWER_NUMBERS,
        "A step of B changes {b} of the single numbers of its parameters, one of A {a}.",
    ),
)


def _compare_beside(work_a: Sequence[StepWork], work_b: Sequence[StepWork]) -> Iterator[Difference]:
    """What A does in most steps beside forward and backward passes and its optimizer."""
    for name, made, seen, sentence in _BESIDE:
        share_a, share_b = fmean(map(made, work_a)), fmean(map(seen, work_b))
        # Where operators were not counted, nothing is known of B; `_compare_operations` says so.
        if share_a > _MOST and share_b < _MOST * share_a and not any(work.refusal for work in work_b):
            yield tell_difference(
                name, spell_share(share_a, 0), spell_share(share_b, 0), sentence, is_other_work=True
            )  # fmt: skip


_BESIDE: tuple[tuple[str, Callable[[StepWork], float], Callable[[StepWork], float], str], ...] = (
    (
        "clipping",
        lambda work: work.clipped,
        lambda work: work.gradients_read,
        "Before its optimizer steps A reads and scales the gradients of {a} of its parameters, as clipping does; B "
        "reads those of {b}.",
    ),
    (
        "averages",
        lambda work: work.kept_beside,
        lambda work: work.kept_beside,
        "Beside its parameters and its optimizer's states a step of A writes copies of {a} of them, as averages of the "
        "weights are, one of B of {b}.",
    ),
)


def _compare_losses(
    results_a: Sequence[BlockResult], results_b: Sequence[BlockResult]
) -> Iterator[Difference]:
    shown_a, shown_b = (
        sum(len(result.losses) for result in results) / max(1, sum(result.steps for result in results))
        for results in (results_a, results_b)
    )
    if results_b and shown_a > _ALL_LOSSES and shown_b < (1.0 - _LESS) * shown_a:
        yield tell_difference(
            "backward", spell_share(shown_a, 0), spell_share(shown_b, 0),
            "Only {b} of B's steps make a backward pass from a loss, of A's {a}.", is_other_work=True,
        )  # fmt: skip


def _compare_operations(
    results_a: Sequence[BlockResult], results_b: Sequence[BlockResult]
) -> Iterator[Difference]:
    """For a sample: products of matrices, their number format, and dropout's random numbers."""
    work_a, work_b = ([r.work for r in results if r.work] for results in (results_a, results_b))
    counted_a, counted_b = (_list_per_sample(results) for results in (results_a, results_b))
    if counted_a and not counted_b:
        why = next((work.refusal for work in work_b if work.refusal), "nothing was counted")
        yield tell_difference(
            "work", "counted", "not counted", f"What B computes was not compared with A: {why}."
        )
    if counted_a and counted_b:
        mean_a, mean_b = fmean(counted_a), fmean(counted_b)
        error = (_square_error(counted_a) + _square_error(counted_b)) ** 0.5
        if mean_b < (1.0 - _LESS) * mean_a and mean_a - mean_b > _ERRORS * error:
            yield tell_difference(
                "computation", f"{mean_a:,.0f}", f"{mean_b:,.0f}",
                "Beside its backward pass B computes {b} matrix operations for a sample, A {a}: B leaves some out.",
                is_other_work=True,
            )  # fmt: skip
        format_a, format_b = work_a[-1].number_format, work_b[-1].number_format
        if format_a != format_b:
            yield tell_difference(
                "format", format_a, format_b, "B computes mostly in {b}, A in {a}.", is_other_work=True
            )  # fmt: skip
    drawn_a, drawn_b = (
        fmean(r.work.random_numbers / max(1.0, r.samples_per_step) for r in results if r.work)
        for results in (results_a, results_b)
    )
    is_known = all(not work.refusal for work in (*work_a, *work_b))
    if is_known and drawn_b < (1.0 - _FEWER_RANDOM) * drawn_a:
        yield tell_difference(
            "dropout", f"{drawn_a:,.0f}", f"{drawn_b:,.0f}",
            "B's model draws {b} random numbers for a sample, A's {a}: with less dropout its losses are lower, and say "
            "nothing.",
            misleads=True,
        )  # fmt: skip


def _list_per_sample(results: Sequence[BlockResult]) -> list[float]:
    return [
        operations / result.samples_per_step
        for result in results
        if result.work and result.samples_per_step > 0
        for operations in result.work.operations
    ]


def _square_error(values: Sequence[float]) -> float:
    return stdev(values) ** 2 / len(values) if len(values) > 1 else 0.0


def _say_weighed(works: Sequence[StepWork]) -> str:
    return "weighed" if works else "not weighed"
