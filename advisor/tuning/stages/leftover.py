"""What is left of a budget, too little for another launch, is spent in the one that is live."""

from advisor.protocol.asked.jobs import Stage
from advisor.protocol.measured.trials import Purpose, Session
from advisor.tuning.decisions import BASELINE, Candidate, Race
from advisor.tuning.history.record import Record
from advisor.tuning.stages.turns import Turn, estimate_race_s, fits_behind, search_rules, verdict_rules

NOTICEABLE = 0.1
"""Share of a budget from which what is left of it is worth a race, and a word."""
_RACED = 0.85
"""Share of what is left that the race is planned for: its first turns and the word with the server come on top."""


def race_on(record: Record, live: Session | None, winner: Candidate | None) -> Turn | None:
    """Return a further race of the winner in the live launch; None where that has none, or no time for one.

    In a launch of the verdict it narrows what this launch says of the strategy. In the search's launch it counts for
    the search only: the strategy was chosen for what that launch showed, so that it cannot stand in the verdict.
    """
    if (
        live is None
        or winner is None
        or record.remaining_s < NOTICEABLE * record.budget_s
        or record.required_cold(winner.changes)
    ):
        return None
    blocks = record.blocks_in(live.id)
    trial = record.find_trial(Purpose.CONFIRM, winner.changes)
    is_verdicts = trial is not None and any(block.trial_number == trial.number for block in blocks)
    purpose = Purpose.CONFIRM if is_verdicts else Purpose.SEARCH
    arms = (BASELINE, Candidate(purpose, winner.changes, winner.because))
    make_rules = verdict_rules if is_verdicts else search_rules
    rules = make_rules(record, arms, _RACED * record.remaining_s)
    if estimate_race_s(record, arms, rules) > record.remaining_s or not fits_behind(
        record, blocks, len(arms), rules
    ):
        return None
    left = f"{record.remaining_s:.0f} s are left, too few for another launch"
    because = f"{left}: {winner.changes.describe()} in this one."
    return Turn(
        Race(Stage.CONFIRM if is_verdicts else record.job.stage, because, arms, rules, record.next_race)
    )
