"""Job and history -> the next thing to do: probe, search, trimming, confirmation; how failures are met.

The planner keeps no state: it reads the history anew each time, so a restarted server goes on where it stood.
"""

import math
from dataclasses import replace
from datetime import datetime

from advisor.protocol.asked.jobs import Job, Stage
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.spending import describe_budget
from advisor.protocol.measured.trials import JobHistory, Purpose, Session, SessionState, Trial
from advisor.protocol.standing import SoFar, Standing
from advisor.protocol.views import NamedCombinations
from advisor.tuning.decisions import (
    BASELINE,
    Candidate,
    Decision,
    EndSession,
    Fail,
    Finish,
    Launch,
    Over,
    Race,
    Wait,
)
from advisor.tuning.history.breakoffs import list_break_offs, may_end_there
from advisor.tuning.history.budget import UNTIMED, affords, limit_new_s, plan_verdict
from advisor.tuning.history.launches import believe_luck
from advisor.tuning.history.moods import find_mood_border, mean_rate_over
from advisor.tuning.history.record import Record
from advisor.tuning.search.named import find_named, keep_named
from advisor.tuning.search.search import next_strategies
from advisor.tuning.search.state import SURELY, SearchState, choose_winner, look
from advisor.tuning.space.space import build_space
from advisor.tuning.stages.confirmation import SPENT, confirm, find_confirmed, next_confirmation
from advisor.tuning.stages.dead_ends import find_dead_end
from advisor.tuning.stages.ladder import list_ladder
from advisor.tuning.stages.leftover import race_on
from advisor.tuning.stages.parts import list_parts
from advisor.tuning.stages.trimming import choose_trimmed, next_trimming
from advisor.tuning.stages.turns import (
    MOST_STEPS,
    Next,
    Turn,
    count_arms_that_fit,
    estimate_race_s,
    fits_behind,
    probe_rules,
    search_rules,
)
from advisor.tuning.stages.undecided import find_reason

_BEYOND, _BEYOND_STEPS = 1.15, 15
"""How much further than the launch that broke off this one has to get."""
_NEW_ARMS = 3
"""Strategies that race the baseline at one time in the search: more would make each one's turn rare, fewer would spend
more of the time on the baseline."""
_ANCHOR_EVERY = 4
"""Launches of strategies between two of the baseline, where every strategy is a launch of its own: drift shows."""


def plan(job: Job, history: JobHistory, now: datetime, *, quick: bool = False) -> Decision:
    """Return what to do next: Race, EndSession or Wait for the live session; without one Launch, Finish or Fail.

    `quick` makes do with a suggestion that costs next to nothing to find.
    """
    record = Record(job, history, now, quick)
    live = history.live_session()
    if live is not None and live.state is not SessionState.RUNNING:
        return Wait(job.stage, f"The session is {live.state.value}: nothing can be measured in it now.")
    if live is None and (sentence := find_dead_end(record)) is not None:
        return Finish(sentence) if record.usable_by_trial else Fail(sentence)
    turn = next_control(record) or _next_turn(record, live)
    if isinstance(turn, Over):
        return _wind_up(record, live, turn.because)
    cold = record.required_cold(turn.arms[-1].changes)
    if live is None:
        return Launch(turn.stage, _launch_because(record, turn), cold)
    if turn.fresh:
        return EndSession(
            turn.stage, "The next step needs a fresh launch, so that one lucky launch cannot decide."
        )
    if record.switches_at_launch and record.usable_in(live.id):
        return EndSession(
            turn.stage,
            "The next strategy needs a launch of its own: the program takes its knobs when it starts.",
        )
    if live.cold != Changes(cold):
        what = Changes(cold).describe() if cold else "the script's own launch settings"
        return EndSession(turn.stage, f"The next strategy needs a launch with {what}.")
    return turn.race if turn.stage is Stage.PROBE else replace(turn.race, smallest_gain=_announce(record))


def _wind_up(record: Record, live: Session | None, because: str) -> Decision:
    """End the live session; without one, finish, or fail when not even the baseline was measured."""
    if live is not None:
        return EndSession(Stage.CONFIRM if record.trials_for(Purpose.CONFIRM) else record.job.stage, because)
    if record.baseline_blocks:
        return Finish(because)
    return Fail(f"{because} {find_reason(record).sentence}")


def _next_turn(record: Record, live: Session | None) -> Next:
    """Return the next race, or why there is none."""
    spent = Over(f"{describe_budget(record.job, record.sessions, record.now)} is spent.")
    if not affords(record, 0.0 if live else record.startup_s / 2.0):
        return spent
    if record.job.facts is None or record.probe is None:
        because = "The script as it stands: what it is, where its time goes, how noisy it is."
        race = Race(Stage.PROBE, because, (BASELINE,), probe_rules(record), record.next_race)
        return Turn(replace(race, named=_announce_named(record)))
    state = look(record)
    if state is None:
        return spent
    found = _next_measured(record, state, live)
    if live is None or isinstance(found, Over):
        return found
    return replace(found, race=replace(found.race, standing=find_standing(state)))


def _next_measured(record: Record, state: SearchState, live: Session | None) -> Next:
    """Return the next race of strategies: of the search, the trimming or the verdict."""
    search: Over | None = None
    begun = find_confirmed(record)
    if begun is None and not _is_past(record, Stage.SEARCH):
        if state.space.is_empty and not state.space.higher:
            return Over("No knob can matter here: each was dropped with its reason.")
        found = _next_search(state, live)
        if isinstance(found, Turn):
            return found
        search = found
    winner = begun
    if winner is None:
        chosen = choose_winner(state)
        if not _is_past(record, Stage.TRIM) and (turn := next_trimming(state, chosen, live)):
            return turn
        winner = choose_trimmed(state)
    ladder = tuple(Candidate(Purpose.CONFIRM, t.changes, t.because) for t in list_ladder(state, winner))
    parts = list_parts(state, winner) if winner is not None else ()
    found = next_confirmation(record, live, winner, ladder, parts)
    if found is SPENT:
        found = race_on(record, live, winner) or SPENT
    return found if isinstance(found, Turn) or winner is not None else search or found


def _is_past(record: Record, stage: Stage) -> bool:
    """Whether the job has gone beyond this stage: what a stage could not afford, a later estimate does not reopen."""
    if record.job.stage is Stage.DONE:
        return False
    order = list(Stage)
    return order.index(record.job.stage) > order.index(stage)


def _next_search(state: SearchState, live: Session | None) -> Next:
    """Return the search's next race, or why the search is over."""
    record = state.record
    found = next_strategies(state, 1 if record.switches_at_launch else _NEW_ARMS)
    if isinstance(found, Over):
        return found
    left_s = limit_new_s(record) - record.spent_s
    left_s = left_s if left_s > 0 else max(record.remaining_s, 0.0)
    if record.switches_at_launch:
        if _launches_since_baseline(record) >= _ANCHOR_EVERY:
            because = f"The baseline again after {_ANCHOR_EVERY} strategies, to see drift."
            return _turn(record, (BASELINE,), because, left_s)
        return _turn(record, tuple(found), found[0].because, left_s)
    cold = record.required_cold(found[0].changes)
    if cold:
        # The baseline cannot run in a launch of other settings: the strategies are held against its nearest blocks,
        # and settings of ours beside what the user named against that alone.
        named = keep_named(state.space, found[0].changes)
        if named and named == cold and named != found[0].changes:
            because = f"{named.describe()} alone, to see what the others add to it."
            found = [Candidate(Purpose.SEARCH, named, because), *(c for c in found if c.changes != named)]
        return _turn(record, tuple(found), found[-1].because, left_s)
    arms = (BASELINE, *found)
    rules = search_rules(record, arms, left_s)
    seats = count_arms_that_fit(record, rules)
    if seats < 2:
        return _turn(record, tuple(found[:1]), found[0].because, left_s)
    arms = arms[:seats]
    rules = search_rules(record, arms, left_s)
    if record.spent_s > 0 and estimate_race_s(record, arms, rules) > left_s and len(arms) > 2:
        arms = arms[:2]
        rules = search_rules(record, arms, left_s)
    fresh = live is not None and not fits_behind(record, record.blocks_in(live.id), len(arms), rules)
    because = " ".join(arm.because for arm in arms[1:2])
    if len(arms) > 2:
        because = f"{len(arms) - 1} strategies beside the baseline. First: {because}"
    return Turn(Race(Stage.SEARCH, because, arms, rules, record.next_race), fresh)


def _announce(record: Record) -> float | None:
    """The smallest gain that this budget can find, told before it is spent; None where it can find none."""
    began = record.began_at()
    if any(b.plan.overrides and (began is None or b.issued_at >= began) for b in record.history.blocks):
        return None
    smallest = plan_verdict(record).plan.smallest_gain
    return smallest if math.isfinite(smallest) else None


def _announce_named(record: Record) -> NamedCombinations | None:
    """What the job has to measure of what its owner named, told with its first race."""
    facts = record.job.facts
    if facts is None or record.baseline_blocks or record.job.continued_at:
        return None
    named = find_named(record, build_space(record.job, facts, ()))
    return named.count(record) if named is not None and named.combinations else None


def _turn(record: Record, arms: tuple[Candidate, ...], because: str, left_s: float) -> Turn:
    return Turn(Race(Stage.SEARCH, because, arms, search_rules(record, arms, left_s), record.next_race))


def _launches_since_baseline(record: Record) -> int:
    for since, block in enumerate(reversed(record.usable)):
        if block.trial_number == record.baseline_number:
            return since
    return 0


def _launch_because(record: Record, turn: Turn) -> str:
    cold = record.required_cold(turn.arms[-1].changes)
    if not record.sessions:
        return "The first launch: the script as it stands."
    if cold:
        return f"A launch with {Changes(cold).describe()}."
    if turn.stage is Stage.CONFIRM:
        return "A fresh launch for the verdict."
    if not any(arm.changes for arm in turn.arms):
        return turn.race.because
    last = record.sessions[-1]
    return f"The last launch is over ({last.outcome.value if last.outcome else last.state.value}): on with the next."


def next_control(record: Record) -> Turn | None:
    """Return a race of the baseline alone where only that tells whether a strategy broke the last launch off."""
    found = list_break_offs(record)
    last = found[-1] if found else None
    if last is None or not last.in_force or last.session.cold or record.probe is None:
        return None
    if record.switches_at_launch or not may_end_there(record.history, last.session):
        return None
    later = [s for s in record.sessions if s.created_at > last.session.created_at and s.state.is_final]
    steps = math.ceil(_BEYOND * last.steps) + _BEYOND_STEPS
    needs_s = record.startup_s + UNTIMED * steps * record.step_s
    if any(not session.was_lost for session in later) or steps > MOST_STEPS or needs_s > record.remaining_s:
        return None
    rules = replace(probe_rules(record), calibrate=False, ceiling=False, min_steps=steps, max_steps=steps)
    because = (
        f"The last launch broke off after {last.steps} steps, further than any other got: the script alone, to see "
        "whether it gets past them without a change."
    )
    return Turn(Race(record.job.stage, because, (BASELINE,), rules, record.next_race))


def find_standing(state: SearchState) -> Standing | None:
    """Return the strategy that is being confirmed, once it raced; before that the search's choice.

    None where no measured strategy is expected to beat the baseline, and where the planner has no time to believe.
    """
    record = state.record
    winner = find_confirmed(record)
    if winner is not None:
        trial = record.find_trial(Purpose.CONFIRM, winner.changes)
        verdict = confirm(record, winner.changes, forced=False)
        if trial is None or verdict.look is None:
            return None
        look, races = verdict.look, len(verdict.comparisons)
        return _stand(record, trial, (look.mean, look.low, look.high), races, len(verdict.launches))
    if record.quick:
        return None
    leader = state.recommendation.chosen
    trial = next((t for t in state.allowed if leader.changes and t.changes == leader.changes), None)
    if trial is None:
        return None
    off = SURELY * math.hypot(leader.sd, believe_luck(record, leader.changes).spread)
    launches = len({block.session_id for block in record.usable_by_trial.get(trial.number, ())})
    spread = (leader.mean, leader.mean - off, leader.mean + off)
    return _stand(record, trial, spread, leader.measurements, launches, leader.best)


def _stand(
    record: Record,
    trial: Trial,
    gain: tuple[float, float, float],
    races: int,
    launches: int,
    chance: float | None = None,
) -> Standing:
    ratio, low, high = map(math.exp, gain)
    found = SoFar(ratio=ratio, low=low, high=high, races=races, launches=launches)
    border = find_mood_border(record.spells)
    rates = [
        mean_rate_over([s for s in record.spells if s.is_slow(border) == slow])
        for slow in ((True, False) if border is not None else ())
    ]
    return Standing(trial_number=trial.number, gain=found, chance=chance, moods=tuple(rates))
