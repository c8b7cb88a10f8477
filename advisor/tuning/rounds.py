"""Interleaved rounds: whose block comes next in a round, and what the completed ones say."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.jobs import Stage
from advisor.protocol.trials import Block, Purpose, Session, Trial
from advisor.tuning.contender import Contender
from advisor.tuning.record import Record, log_throughput
from advisor.tuning.scores import log_rate


@dataclass(frozen=True)
class Pair:
    """One round's comparison of a strategy with the baseline (in the simplification, with the winner)."""

    round: int
    session_id: str
    """Session of the strategy's block."""
    log_ratio: float
    """ln(strategy's throughput / baseline's) over the total time, stalls included: what is reported."""
    typical: float
    """The same of typical steps (robust step times), which stalls do not blur: what strategies are chosen by."""
    baseline: Block
    strategy: Block


def list_pairs(
    record: Record,
    purpose: Purpose,
    changes: Mapping[str, Value],
    before: int | None = None,
    against: Trial | None = None,
) -> list[Pair]:
    """Return the completed comparisons of these changes with the baseline, or with the trial `against`.

    `before`: only rounds below that one. Both blocks come from one session, which cancels its luck; a strategy that
    needs processes of its own, or a script too short for two blocks, is compared across the round's sessions.
    """
    trial = record.find_trial(purpose, changes)
    reference = against or record.find_trial(Purpose.BASELINE, {})
    if trial is None or reference is None:
        return []
    together = is_paired_within(record, changes, reference.changes)
    rounds = sorted(
        {b.round for b in record.usable if b.trial_number == trial.number and b.round is not None}
    )
    pairs: list[Pair] = []
    for round_ in rounds:
        if before is not None and round_ >= before:
            break
        for session in record.sessions:
            mine = record.settled(trial, round_, session.id)
            theirs = record.settled(reference, round_, session.id if together else None)
            if mine is not None and theirs is not None:
                ratio = log_throughput(mine) - log_throughput(theirs)
                typical = log_rate(mine) - log_rate(theirs)
                pairs.append(Pair(round_, session.id, ratio, typical, theirs, mine))
                break
    return pairs


def is_paired_within(
    record: Record, changes: Mapping[str, Value], reference: Mapping[str, Value] | None = None
) -> bool:
    """Whether the strategy and the reference (none: the baseline) can be measured in one session."""
    needed = record.required_cold(changes), record.required_cold(reference or {})
    return record.pairs_within_a_session and needed[0] == needed[1]


def order_hot_first(record: Record, line_up: Sequence[Contender]) -> list[Contender]:
    """Keep the order, but let those that need a launch of their own stand at the end, where others do not."""
    return sorted(line_up, key=lambda c: record.has_launch_of_its_own(c.changes))


def find_missing(
    record: Record,
    round_: int,
    line_up: Sequence[Contender],
    live: Session | None,
    reference: Mapping[str, Value] | None = None,
) -> Contender | None:
    """Return the first of the line-up that still lacks its block in this round; None when the round is complete.

    A round that a session's end cut short is measured again as a whole in the next one. `reference` is what the
    others are held against: the baseline unless said otherwise.
    """
    hot = [c for c in line_up if is_paired_within(record, c.changes, reference)]
    hot_done = any(all(_has_block(record, c, round_, s.id) for c in hot) for s in record.sessions)
    here = live.id if live else ""
    for contender in line_up:
        if contender in hot:
            if not hot_done and not _has_block(record, contender, round_, here):
                return contender
        elif not _has_block(record, contender, round_, None):
            return contender
    return None


def has_begun(record: Record, round_: int, live: Session | None) -> bool:
    """Whether the live session holds a block of this round."""
    return live is not None and any(
        b.round == round_ and b.session_id == live.id for b in record.history.blocks
    )


def last_round_of(record: Record, purposes: Collection[Purpose]) -> int:
    """Return the highest round that any trial of these purposes has a block in; 0 when none has.

    Rounds are counted through the whole job: finals, simplification, confirmation.
    """
    numbers = {trial.number for trial in record.history.trials if trial.purpose in purposes}
    return max((b.round or 0 for b in record.history.blocks if b.trial_number in numbers), default=0)


def is_past(record: Record, stage: Stage) -> bool:
    """Whether the job has gone beyond this stage: what a stage could not afford, a later estimate does not reopen."""
    order = list(Stage)
    return order.index(record.job.stage) > order.index(stage)


def estimate_round_s(record: Record, line_up: Sequence[Contender]) -> float:
    """Return what one round of this line-up takes, in seconds: its blocks, and its launches where they differ."""
    if record.switches_at_launch:
        return len(line_up) * record.strategy_s
    kinds = {tuple(sorted(record.required_cold(c.changes).items())) for c in line_up}
    return len(line_up) * record.block_s + (len(kinds) if len(kinds) > 1 else 0) * record.startup_s


def count_sessions(pairs: Sequence[Pair]) -> int:
    """Return how many launches the pairs rest on."""
    return len({pair.session_id for pair in pairs})


def _has_block(record: Record, contender: Contender, round_: int, session_id: str | None) -> bool:
    trial = record.find_trial(contender.purpose, contender.changes)
    return trial is not None and record.settled(trial, round_, session_id) is not None
