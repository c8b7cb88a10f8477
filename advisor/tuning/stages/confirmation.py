"""The confirmation: fresh launches, each one race of the baseline and the winner, until their interval decides.

Only these races are reported. What their looks may spend of the 5 % error: docs/decisions/0011.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from advisor.protocol.asked.jobs import Stage
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import RaceRules
from advisor.protocol.measured.trials import BlockState, Contrast, Purpose, Session
from advisor.tuning.decisions import BASELINE, Candidate, Over, Race
from advisor.tuning.history.budget import Reserve, affords, plan_verdict
from advisor.tuning.history.comparisons import Comparison, list_comparisons
from advisor.tuning.history.launches import believe_luck, is_part
from advisor.tuning.history.record import Record
from advisor.tuning.measure.contrast import merge_contrasts
from advisor.tuning.measure.levels import FALLBACK_SHARE, FIRST_LOOK, find_level
from advisor.tuning.measure.pooling import LUCK_PER_GAIN, Luck
from advisor.tuning.measure.sequential import Look, chance_to_decide, look_at
from advisor.tuning.measure.slow_steps import settle
from advisor.tuning.stages.ladder import race_rung
from advisor.tuning.stages.loss_guard import check_losses, count_guarded_steps
from advisor.tuning.stages.moods import ByMood, split_by_mood
from advisor.tuning.stages.turns import Next, Turn, count_arms_that_fit, verdict_rules

SPENT = Over("The budget is spent.")
SHOWN = "The races have shown the gain."
_HOPELESS = 0.05
"""Chance of a decision below which a continued job searches anew instead of racing the same strategy on."""
_MOST_AHEAD = 8
"""Launches that the chance to decide looks ahead at most: what more of them decide is decided by so many in nearly all
cases, and a budget of a day holds thousands."""
_SHORTEST = 0.33
"""Least length of a verdict's last race over the planned one that is still worth a launch, once two are there."""
_MOST_DEAD = 2
"""Launches of a strategy that died before their race: another one would do so, too."""
_MOST_HALVINGS = 3
"""Times at most that a verdict's race is made half as long because launches died in one."""
_PLAIN_LEAD = math.log(1.3)
"""Lead, in ln(throughput), from which a race may end before its time: from which gains are told as factors."""


@dataclass(frozen=True)
class Confirmation:
    """What the races of the verdict say about one strategy."""

    changes: Changes
    comparisons: tuple[Comparison, ...]
    look: Look | None
    """The look that decides, or the last one; None without a race."""
    launches: tuple[Contrast, ...]
    """What each launch said: its races put together."""
    chance: float
    """Probability that the launches that are still planned decide."""
    guard_level: float
    """Two-sided level of a look after the last launch, whatever was decided before: what the loss guard reads at."""
    moods: ByMood
    """What the look's launches say in each mood."""

    @property
    def told(self) -> tuple[Contrast, ...]:
        """The launches that the look stands on."""
        return self.launches[: self.look.launches] if self.look is not None else ()

    @property
    def sessions(self) -> int:
        """Sessions that the look stands on: where strategies need launches of their own, two to a pair."""
        order = list(dict.fromkeys(c.launch for c in self.comparisons))[: len(self.told)]
        sides = [side for c in self.comparisons if c.launch in order for side in (c.strategy, c.reference)]
        return len({side.session_id for side in sides})

    @property
    def is_decided(self) -> bool:
        """Whether the question is closed."""
        return self.look is not None and self.look.decision is not None


def confirm(record: Record, changes: Mapping[str, Value], *, forced: bool) -> Confirmation:
    """Return what the races measured so far say about a strategy against the baseline.

    Looks are taken after every launch; the first one that decides stands. `forced`: the budget ends here, so that the
    last look spends what is left.
    """
    apart: dict[str, Value] | None = {} if record.required_cold(changes) else None
    found = tuple(list_comparisons(record, Purpose.CONFIRM, changes, against=apart))
    launches, ended = put_together(record, found)
    planned = max(count_planned(record, ended), 2)
    luck, alpha = believe_luck(record, changes), _share_alpha(record, changes)
    look: Look | None = None
    moods = ByMood()
    for count in range(1, len(launches) + 1):
        moods = split_by_mood(record, changes, found, launches[:count])
        look = look_at(
            launches[:count],
            # An earlier budget's look stands as it was taken.
            planned=next((e for e in ended if e >= count), planned),
            min_gain=record.job.spec.min_gain,
            forced=count in ended or (forced and count == len(launches)),
            ended=[e for e in ended if e < count],
            luck=luck,
            alpha=alpha,
            moods=moods.parts,
            doubt=moods.doubt,
        )
        if look is not None and look.decision is not None:
            break
    chance = _estimate_chance(record, launches, planned, ended, luck, alpha)
    level = _find_guard_level(len(launches), planned, ended, forced)
    return Confirmation(Changes(changes), found, look, launches, chance, level, moods)


def _find_guard_level(count: int, planned: int, ended: tuple[int, ...], forced: bool) -> float:
    # A budget may have ended before the first launch.
    end = next((e for e in ended if e >= max(count, 1)), planned)
    return find_level(count, end, forced=forced or count in ended, ended=[e for e in ended if e < count])


def _share_alpha(record: Record, changes: Mapping[str, Value]) -> float:
    """What this strategy's looks may spend of the error: all strategies that the advice can change to share it."""
    spec = record.job.spec
    if spec.verify or spec.allow.rank == 0:
        return spec.error
    winner = _find_raced(record, record.began_at())
    # What the winner is held against beside it is advised only where the winner is proved.
    if winner is None or is_part(changes, winner.changes):
        return (1.0 - FALLBACK_SHARE) * spec.error
    others = [t for t in record.trials_for(Purpose.CONFIRM) if not is_part(t.changes, winner.changes)]
    return FALLBACK_SHARE * spec.error / max(1, sum(record.is_allowed(t) for t in others))


def _estimate_chance(
    record: Record,
    launches: tuple[Contrast, ...],
    planned: int,
    ended: tuple[int, ...],
    luck: Luck,
    alpha: float,
) -> float:
    """The probability that the launches which the budget still holds decide; beyond the plan they count as further
    budgets."""
    if not launches:
        return 1.0
    count = len(launches)
    last = count + max(1, min(_MOST_AHEAD, int(record.remaining_s / plan_verdict(record).launch_s)))
    if count >= planned:
        planned, ended = last, (*ended, planned)
    return chance_to_decide(
        launches, max(planned, last), record.job.spec.min_gain, ended=ended, luck=luck, alpha=alpha
    )


def find_confirmed(record: Record) -> Candidate | None:
    """Return the strategy that the verdict is about: the one to verify, else that of its first race in this budget.

    A job that is continued goes on with the one that its last budget left open, while that may still be decided.
    """
    if record.job.spec.verify:
        return Candidate(Purpose.CONFIRM, record.job.spec.verify, "The strategy to verify.")
    began = record.began_at()
    mine = _find_raced(record, began)
    left = mine or find_raced(record)
    if mine is not None or left is None:
        return mine
    verdict = confirm(record, left.changes, forced=False)
    is_open = not verdict.is_decided and verdict.chance >= _HOPELESS
    return left if is_open else None


def find_raced(record: Record) -> Candidate | None:
    """Return the strategy that the last verdict is about, decided or not: of the last budget that raced for one."""
    starts = (None, *record.job.continued_at)
    return next(filter(None, (_find_raced(record, start) for start in reversed(starts))), None)


def _find_raced(record: Record, since: datetime | None) -> Candidate | None:
    """The strategy of an allowed rung whose race for the verdict was the first since then."""
    trials = [t for t in record.trials_for(Purpose.CONFIRM) if t.changes and record.is_allowed(t)]
    numbers = {t.number for t in trials if not record.has_failed(t)}
    blocks = [
        b
        for b in record.history.blocks
        if b.trial_number in numbers and (since is None or b.issued_at >= since)
    ]
    if not blocks:
        return None
    trial = record.trial[blocks[0].trial_number]
    return Candidate(Purpose.CONFIRM, trial.changes, trial.because)


def next_confirmation(
    record: Record,
    live: Session | None,
    winner: Candidate | None,
    ladder: tuple[Candidate, ...],
    parts: tuple[Candidate, ...] = (),
) -> Next:
    """Return the verdict's next race, or why there is none.

    The winner's races come first, one in each fresh launch, with those of its `parts` beside it that are not told
    yet; what rungs beside the verdict bring is raced in the same launches behind it, where the budget holds that too.
    """
    reserve = plan_verdict(record)
    if winner is not None:
        verdict = confirm(record, winner.changes, forced=False)
        over = _why_over(record, winner, verdict)
        launches = {c.launch for c in verdict.comparisons}
        rungs = () if record.required_cold(winner.changes) else ladder
        if (turn := race_rung(record, live, rungs, reserve, launches, over=bool(over))) is not None:
            return turn
        is_left = over == SHOWN and bool(parts) and len(verdict.launches) < reserve.plan.launches
        if not over or is_left:
            arms = (BASELINE, Candidate(Purpose.CONFIRM, winner.changes, winner.because), *parts)
            found = _race(record, live, arms, reserve, verdict)
            tells = isinstance(found, Turn) and len(found.arms) > 2
            return found if not over or tells else Over(over)
        return Over(over)
    return race_rung(record, live, ladder, reserve, (), over=True) or Over("There is no strategy to confirm.")


def _why_over(record: Record, winner: Candidate, verdict: Confirmation) -> str:
    """A sentence when no further race of the winner is worth its time, else nothing."""
    trial = record.find_trial(Purpose.CONFIRM, winner.changes)
    if trial is not None and record.has_failed(trial):
        ending = trial.outcome.words if trial.outcome else "could not be measured"
        return f"The strategy {winner.changes.describe()} {ending}. {trial.outcome_reason}".rstrip()
    if trial is None and (death := _find_death(record, winner)):
        return death
    look = verdict.look
    if look is not None and look.decision == "keep":
        return "The races exclude a gain that is worth a change."
    if look is not None and look.decision == "change":
        effect = record.effect_of(winner.changes)
        guard = check_losses(record, effect, [c.strategy for c in verdict.comparisons], verdict.guard_level)
        if guard.admits(effect) or guard.harmed or not guard.is_open:
            return SHOWN
    # Without a decision the budget is used up, however small the chance: every launch narrows the interval.
    return ""


def _find_death(record: Record, winner: Candidate) -> str:
    """Why no trial tells of the winner: its launches die before they race, which the next one would do as well."""
    cold = record.required_cold(winner.changes)
    died = [s for s in record.sessions if cold and s.cold == cold and cold in record.killers]
    if len(died) < _MOST_DEAD:
        return ""
    return f"No launch with {winner.changes.describe()} came as far as a race. {died[-1].reason}".rstrip()


def _race(
    record: Record,
    live: Session | None,
    arms: tuple[Candidate, ...],
    reserve: Reserve,
    verdict: Confirmation,
) -> Next:
    cold = record.required_cold(arms[1].changes)
    count = len(verdict.launches)
    because = f"Confirmation, launch {count + 1}: {arms[1].changes.describe()}."
    if cold:
        return _race_apart(record, live, arms[:2], because, verdict)
    fresh = live is not None and bool(record.blocks_in(live.id))
    needs_s = reserve.launch_s if live is None or fresh else reserve.launch_s - record.startup_s
    # The last launch of a budget may be shorter than planned: what is left is not thrown away.
    # A script whose launches die now and then must get to the end of a race.
    planned_s = reserve.plan.race_s * 0.5 ** min(_MOST_HALVINGS, _count_broken_off(record))
    race_s = min(planned_s, reserve.plan.race_s - (needs_s - record.remaining_s))
    if race_s < planned_s * (_SHORTEST if count >= 2 else 0.0) or race_s <= 0.0:
        return SPENT
    enough = _find_enough(record, arms[1], verdict)
    if enough is None:
        later = _count_later(record, arms[1], verdict, reserve)
        arms = arms[: _count_seats(record, arms, reserve, later, needs_s)]
        race_s *= len(arms) / 2.0
    else:
        # A plain lead is shown in less than the planned time: all parts share it.
        arms = arms[: max(2, count_arms_that_fit(record, verdict_rules(record, arms[:2], race_s)))]
    rules = verdict_rules(record, arms, race_s, enough)
    return Turn(Race(Stage.CONFIRM, because, arms, rules, record.next_race), fresh)


def _count_later(record: Record, winner: Candidate, verdict: Confirmation, reserve: Reserve) -> int:
    """Launches behind this one that the winner needs: as planned, fewer for a plain lead, none once it is shown."""
    done = len(verdict.launches)
    if verdict.is_decided:
        return 0
    is_plain = _find_lead(record, winner, verdict) > _PLAIN_LEAD
    return max(0, (FIRST_LOOK if is_plain else reserve.plan.launches) - done - 1)


def _count_seats(
    record: Record, arms: tuple[Candidate, ...], reserve: Reserve, later: int, needs_s: float
) -> int:
    """How many arms may race: beside baseline and winner those that leave the `later` launches their time."""
    spare_s = record.remaining_s - needs_s - later * reserve.launch_s
    each_s = (1 + later) * reserve.plan.race_s / 2.0
    two = verdict_rules(record, arms[:2], reserve.plan.race_s)
    return min(len(arms), 2 + int(max(0.0, spare_s) / each_s), max(2, count_arms_that_fit(record, two)))


def _find_enough(record: Record, winner: Candidate, verdict: Confirmation) -> float | None:
    """The standard error that is enough for a plain lead: launches differ by as much, however long they race."""
    lead = _find_lead(record, winner, verdict)
    return LUCK_PER_GAIN * lead if lead > _PLAIN_LEAD and record.is_exact(winner.changes) else None


def _find_lead(record: Record, winner: Candidate, verdict: Confirmation) -> float:
    """The least ln(throughput ratio) seen of the winner; of one that never raced as it is, that of its best part."""
    searched = {
        t.changes: list_comparisons(record, Purpose.SEARCH, t.changes)
        for t in record.trials_for(Purpose.SEARCH)
    }
    parts = (
        [winner.changes]
        if searched.get(winner.changes)
        else [c for c in searched if is_part(c, winner.changes)]
    )
    leads = [min(settle(c.contrast)[0] for c in searched[part]) for part in parts if searched[part]]
    seen = [max(leads)] if leads else []
    return min(seen + ([verdict.look.mean] if verdict.look else []), default=0.0)


def _count_broken_off(record: Record) -> int:
    """Races of this budget's verdict that their launches did not survive."""
    began = record.began_at()
    numbers = {t.number for t in record.trials_for(Purpose.CONFIRM) if t.changes}
    return sum(
        b.state is BlockState.VOID and b.trial_number in numbers and (began is None or b.issued_at >= began)
        for b in record.history.blocks
    )


def _race_apart(
    record: Record, live: Session | None, arms: tuple[Candidate, ...], because: str, verdict: Confirmation
) -> Next:
    """Arms that need launches of their own take turns launch by launch: A B, B A, … under one race's number."""
    rules, timed_s = _plan_apart(record, arms[1], verdict)
    # Apart from the search's baseline, which was measured at another time.
    arms = (replace(arms[0], purpose=Purpose.CONFIRM), arms[1])
    number, missing = _find_missing(record, arms)
    first = missing[0] if number % 2 else missing[-1]
    if held := record.races.get(number):
        rules = held[0].plan.rules
    cold = record.required_cold(first.changes)
    fresh = live is not None and (bool(record.blocks_in(live.id)) or live.cold != cold)
    each_s = record.startup_s + record.trip_s + 1.5 * timed_s
    if not affords(record, each_s * len(missing) - (0.0 if fresh or live is None else record.startup_s)):
        return SPENT
    return Turn(Race(Stage.CONFIRM, because, (first,), rules, number), fresh)


def _plan_apart(record: Record, winner: Candidate, verdict: Confirmation) -> tuple[RaceRules, float]:
    """The rules of a launch of the baseline or the winner alone, and how long they are timed in the mean."""
    timed_s = record.job.spec.measurement.block_s
    rules = verdict_rules(record, (BASELINE,), timed_s)
    if record.is_exact(winner.changes):
        return rules, timed_s
    step_s = record.step_s * (1.0 + math.exp(-_find_lead(record, winner, verdict))) / 2.0
    steps = max(rules.min_steps, count_guarded_steps(record, step_s, len(verdict.launches)))
    guarded = replace(rules, min_steps=steps, max_steps=max(steps, rules.max_steps))
    return guarded, max(timed_s, steps * step_s)


def _find_missing(record: Record, arms: tuple[Candidate, ...]) -> tuple[int, tuple[Candidate, ...]]:
    """The number of the race that still lacks arms, and which those are; a new number with all when none does."""
    trials = [record.find_trial(arm.purpose, arm.changes) for arm in arms]
    numbers = [trial.number for trial in trials if trial is not None]
    last = max((b.race for n in numbers for b in record.usable_by_trial.get(n, ())), default=0)
    held = {b.trial_number for b in record.races.get(last, ())}
    missing = tuple(
        arm for arm, trial in zip(arms, trials, strict=True) if trial is None or trial.number not in held
    )
    return (last, missing) if last and missing else (record.next_race, arms)


def put_together(
    record: Record, comparisons: tuple[Comparison, ...]
) -> tuple[tuple[Contrast, ...], tuple[int, ...]]:
    """Return each launch's word in the order of launches, and how many launches each earlier budget ended with."""
    by_launch: dict[str, list[Contrast]] = {}
    for comparison in comparisons:
        by_launch.setdefault(comparison.launch, []).append(comparison.contrast)
    order = [s for s in record.sessions if s.id in by_launch]
    launches = tuple(merge_contrasts(by_launch[session.id]) for session in order)
    ended = tuple(sum(session.created_at < moment for session in order) for moment in record.job.continued_at)
    return launches, ended


def count_planned(record: Record, ended: tuple[int, ...]) -> int:
    """Return the launches at which this budget ends, those of earlier budgets included."""
    return (ended[-1] if ended else 0) + plan_verdict(record).plan.launches
