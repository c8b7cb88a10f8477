"""Interleaved rounds: whose block comes next in a round, and what the completed ones say."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from advisor.protocol.base import Value
from advisor.protocol.trials import Block, Purpose, Session
from advisor.tuning.contender import Contender
from advisor.tuning.record import Record, log_throughput

LAST_FINAL_ROUND = 2
FIRST_CONFIRM_ROUND = LAST_FINAL_ROUND + 1
"""Rounds are counted through, so that a block's round says whether it belongs to the finals."""


@dataclass(frozen=True)
class Pair:
    """One round's comparison of a strategy with the baseline."""

    round: int
    session_id: str
    """Session of the strategy's block."""
    log_ratio: float
    """ln(strategy's throughput / baseline's)."""
    baseline: Block
    strategy: Block


def list_pairs(
    record: Record, purpose: Purpose, changes: Mapping[str, Value], rounds: Iterable[int]
) -> list[Pair]:
    """Return the completed comparisons of these changes with the baseline.

    Both blocks come from one session, which cancels its luck; a strategy that needs processes of its own, or a
    script too short for two blocks, is compared across the round's sessions.
    """
    trial = record.find_trial(purpose, changes)
    baseline = record.find_trial(Purpose.BASELINE, {})
    if trial is None or baseline is None:
        return []
    together = is_paired_within(record, changes)
    pairs: list[Pair] = []
    for round_ in rounds:
        for session in record.sessions:
            mine = record.settled(trial, round_, session.id)
            theirs = record.settled(baseline, round_, session.id if together else None)
            if mine is not None and theirs is not None:
                ratio = log_throughput(mine) - log_throughput(theirs)
                pairs.append(Pair(round_, session.id, ratio, theirs, mine))
                break
    return pairs


def is_paired_within(record: Record, changes: Mapping[str, Value]) -> bool:
    """Whether the strategy and the baseline can be measured in one session."""
    return record.pairs_within_a_session and not record.required_cold(changes)


def order_hot_first(record: Record, line_up: Sequence[Contender]) -> list[Contender]:
    """Keep the order, but let those that need a launch of their own stand at the end, where others do not."""
    return sorted(line_up, key=lambda c: record.has_launch_of_its_own(c.changes))


def find_missing(
    record: Record, round_: int, line_up: Sequence[Contender], live: Session | None
) -> Contender | None:
    """Return the first of the line-up that still lacks its block in this round; None when the round is complete.

    A round that a session's end cut short is measured again as a whole in the next one.
    """
    hot = [c for c in line_up if is_paired_within(record, c.changes)]
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


def last_round(record: Record, default: int) -> int:
    """Return the highest round that any block belongs to, at least `default`."""
    return max([default, *(b.round for b in record.history.blocks if b.round is not None)])


def count_sessions(pairs: Sequence[Pair]) -> int:
    """Return how many launches the pairs rest on."""
    return len({pair.session_id for pair in pairs})


def _has_block(record: Record, contender: Contender, round_: int, session_id: str | None) -> bool:
    trial = record.find_trial(contender.purpose, contender.changes)
    return trial is not None and record.settled(trial, round_, session_id) is not None
