"""How the budget is divided: time between search and confirmation, and the 5 % error between the looks."""

from advisor.protocol.jobs import JobSpec
from advisor.tuning.record import Record
from advisor.tuning.statistics import FIRST_LOOK, level_of_look

FINAL_ROUNDS = 2
FINALISTS = 3
FEWEST_ROUNDS = FIRST_LOOK
_SEARCH_SHARE = 2.0 / 3.0
_LEAST_SEARCH_SHARE = 1.0 / 3.0
USUAL_ROUNDS = 8


def limit_search_s(record: Record) -> float:
    """Return the wall time, from the job's start, at which the search has to stop, in seconds.

    Two thirds of the budget, or earlier where finals and a confirmation of usual length would not fit behind it;
    but never less than a third, because without a search there is nothing to confirm.
    """
    most = record.budget_s
    rest = estimate_finals_s(record, FINALISTS) + estimate_confirmation_s(record, USUAL_ROUNDS)
    return max(_LEAST_SEARCH_SHARE * most, min(_SEARCH_SHARE * most, most - rest))


def estimate_finals_s(record: Record, finalists: int) -> float:
    """Return what the rounds of the finals take, in seconds."""
    return FINAL_ROUNDS * (1 + finalists) * record.strategy_s


def estimate_confirmation_s(record: Record, rounds: int) -> float:
    """Return what that many rounds of baseline and winner take in fresh sessions (two, or one a block), in seconds."""
    if record.switches_at_launch:
        return 2 * rounds * record.strategy_s
    lead_ins = 2 if record.has_lead_in else 0
    return 2 * record.startup_s + (2 * rounds + lead_ins) * record.block_s


def affords(record: Record, blocks: int, launches: int = 0) -> bool:
    """Whether the budget still holds that many blocks and launches.

    Where each block needs a launch, all but the first bring their own.
    """
    if record.switches_at_launch:
        launches += blocks - 1
    return blocks * record.block_s + launches * record.startup_s <= record.remaining_s


def look_level(spec: JobSpec, rounds: int = FEWEST_ROUNDS) -> float:
    """Return the level of the look at an interval after that many rounds: all looks together err in 5 % of jobs."""
    return level_of_look(rounds, spec.budget.max_rounds)
