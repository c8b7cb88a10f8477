"""The verdict where the baseline has moods: judged in each of them, at once where the sign is clear in all."""

import math
import random
from collections.abc import Sequence

import pytest

from advisor.protocol.answers.moods import MoodCause, Moods, say_moods
from advisor.protocol.asked.jobs import Budget
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Purpose
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.tuning.explain.advice import build_advice
from advisor.tuning.history.mood_causes import find_moods
from advisor.tuning.search.shares import Shares
from advisor.tuning.search.state import look
from advisor.tuning.stages.confirmation import confirm
from tests.unit.tuning.raced import BASE, Raced
from tests.unit.tuning.simulated_cluster import START, make_job, make_spec

ONE_THREAD: dict[str, Value] = {"num_threads": 1}
SMALL: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}
Level = tuple[float, float]
"""Step of the baseline and of the strategy, in seconds."""
FAST: Level = (0.10, 0.08)
SLOW: Level = (0.30, 0.08)
EVEN: Level = (0.10, 0.10)


def make_raced() -> Raced:
    return Raced(make_job(make_spec(budget=Budget(max_trials=4, max_seconds=900))))


def draw(levels: Sequence[Level], seed: int = 0, cycles: int = 8) -> list[BlockResult]:
    """A race of so many cycles of four steps at each level in turn."""
    dice = random.Random(seed)
    arms = [
        [level[arm] * math.exp(dice.gauss(0.0, 0.01)) for level in levels for _ in range(4 * cycles)]
        for arm in range(2)
    ]
    return [Raced.make_result(times, (4,) * (cycles * len(levels))) for times in arms]


def race(raced: Raced, *levels: Level, changes: dict[str, Value] = ONE_THREAD, search: bool = False) -> Raced:
    purpose = Purpose.SEARCH if search else Purpose.CONFIRM
    return raced.race(BASE, (purpose, changes, 0.0), results=draw(levels, len(raced.blocks)))


def judge(raced: Raced, changes: dict[str, Value] = ONE_THREAD, forced: bool = False) -> str | None:
    look = confirm(raced.record, changes, forced=forced).look
    assert look is not None
    return look.decision


def test_a_gain_in_both_moods_is_a_change_after_two_launches() -> None:
    raced = make_raced()
    for _ in range(2):
        race(raced.launch(), FAST, SLOW)

    verdict = confirm(raced.record, ONE_THREAD, forced=False)

    assert verdict.look is not None
    assert verdict.look.decision == "change"
    assert verdict.look.moods == 2
    assert verdict.look.low < math.log(0.10 / 0.08) < math.log(0.30 / 0.08) < verdict.look.high
    time_s = 1.0 / 0.10 * (0.10 + 0.08) + 1.0 / 0.30 * (0.30 + 0.08)
    rates = (0.10 + 0.08) / 0.08 + (0.30 + 0.08) / 0.08
    assert verdict.look.mean == pytest.approx(math.log(rates / time_s), abs=0.02), "by the time of each mood"


def test_moods_of_whole_launches_decide_as_well() -> None:
    raced = make_raced()
    race(raced.launch(), FAST)
    race(raced.launch(), SLOW)

    assert judge(raced) == "change"


def test_a_sign_that_is_open_in_one_mood_is_undecided() -> None:
    raced = make_raced()
    for _ in range(3):
        race(raced.launch(), (0.10, 0.104), (0.30, 0.104))

    assert judge(raced, forced=True) is None
    assert "several moods" in build_advice(raced.job, raced.record.history, raced.now).headline


def test_a_strategy_that_is_slower_in_every_mood_is_kept_out() -> None:
    raced = make_raced()
    for _ in range(4):
        race(raced.launch(), (0.10, 0.103), (0.30, 0.31))

    assert judge(raced) == "keep"


def test_a_mood_of_the_strategy_alone_is_judged_as_well() -> None:
    raced = make_raced()
    for _ in range(3):
        race(raced.launch(), (0.10, 0.07), (0.10, 0.12))

    assert judge(raced, forced=True) is None


def test_a_fast_mood_that_the_verdict_did_not_meet_is_told_by_the_search() -> None:
    raced = make_raced().launch()
    race(race(raced, FAST, search=True), FAST, search=True)
    for _ in range(2):
        race(raced.launch(), SLOW)

    assert judge(raced) == "change"
    moods = build_advice(raced.job, raced.record.history, raced.now).moods
    assert moods is not None
    assert moods.fast.gain is not None
    assert not moods.fast.gain.is_confirmed
    assert moods.fast.gain.ratio == pytest.approx(0.10 / 0.08, abs=0.03)
    assert moods.slow.gain is not None
    assert moods.slow.gain.is_confirmed


def test_a_fast_mood_without_the_strategy_may_take_all_of_the_gain() -> None:
    raced = make_raced().launch()
    race(race(raced, FAST, changes=SMALL, search=True), FAST, changes=SMALL, search=True)
    for _ in range(2):
        race(raced.launch(), (0.30, 0.15))
    assert judge(raced) is None, "the baseline's fast step is shorter than the strategy's"

    raced = make_raced().launch()
    race(race(raced, FAST, changes=SMALL, search=True), FAST, changes=SMALL, search=True)
    for _ in range(2):
        race(raced.launch(), (0.30, 0.05))
    assert judge(raced) == "change", "and here it is longer"


def test_a_slow_mood_without_the_strategy_takes_as_many_seconds_of_its_steps() -> None:
    raced = make_raced().launch()
    race(race(raced, SLOW, changes=SMALL, search=True), SLOW, changes=SMALL, search=True)
    for _ in range(2):
        race(raced.launch(), FAST)

    assert judge(raced) == "change"


def make_demo() -> Raced:
    """Slow and fast races in one launch: one thread is not slow with the baseline, a small bucket is."""
    raced = make_raced().launch()
    race(race(raced, SLOW, search=True), (0.32, 0.31), changes=SMALL, search=True)
    race(race(raced, FAST, search=True), EVEN, changes=SMALL, search=True)
    for _ in range(2):
        race(raced.launch(), SLOW)
    return raced


def tell(raced: Raced) -> Moods:
    moods = build_advice(raced.job, raced.record.history, raced.now).moods
    assert moods is not None
    return moods


def test_moods_are_told_with_their_rates_shares_and_times() -> None:
    raced = make_demo()
    moods = tell(raced)

    assert moods.is_within_launch
    assert moods.slow.low == pytest.approx(64 / 0.32, rel=0.02)
    assert moods.slow.high == pytest.approx(64 / 0.30, rel=0.02)
    assert moods.fast.low == pytest.approx(64 / 0.10, rel=0.02)
    assert moods.slow.share + moods.fast.share == pytest.approx(1.0)
    assert moods.slow.share > 0.7
    assert [span.session_id for span in moods.slow.spans] == ["s0", "s0", "s1", "s2"]
    assert START < moods.slow.spans[0].began_at < moods.slow.spans[0].ended_at <= moods.fast.spans[0].began_at
    assert moods.slow.longest_step_s > 0.3


def test_the_setting_that_no_race_was_slow_with_ends_the_mood() -> None:
    moods = tell(make_demo())

    assert moods.remedy == "OMP_NUM_THREADS=1"
    assert (moods.remedy_races, moods.remedy_slow) == (4, 0)
    told = say_moods(moods)
    assert told.startswith("Your settings run at 200–214 and at 640 samples/s in one launch; OMP")
    assert "OMP_NUM_THREADS=1 ends it (with it slow in none of 4 races)" in told
    assert "In the fast mood it brings +2" in told


def test_a_setting_that_was_slow_with_the_baseline_ends_nothing() -> None:
    raced = make_raced().launch()
    race(race(raced, (0.30, 0.28), search=True), FAST, search=True)

    moods = find_moods(raced.record)

    assert moods is not None
    assert not moods.is_remedy_shown
    assert "may end it" in say_moods(moods) or "likely to end it" in say_moods(moods)


def test_one_race_that_was_fast_beside_a_slow_baseline_may_be_luck() -> None:
    raced = make_raced().launch()
    race(race(raced, SLOW, changes=SMALL, search=True), FAST, changes=SMALL, search=True)

    moods = find_moods(raced.record)

    assert moods is not None
    assert not moods.is_remedy_shown


def test_one_mood_is_not_told() -> None:
    raced = make_raced()
    for _ in range(2):
        race(raced.launch(), FAST)

    advice = build_advice(raced.job, raced.record.history, raced.now)
    assert advice.moods is None
    assert say_moods(advice.moods) == ""
    assert find_moods(raced.record) is None


def test_threads_beyond_the_cores_are_the_cause_where_fewer_end_it() -> None:
    raced = make_demo()
    facts = raced.job.facts
    assert facts is not None
    cores = raced.job.cluster.nodes[0].cpu_count
    crowded = facts.model_copy(update={"cpu_threads": 2 * cores, "device": DeviceKind.CPU})
    raced.job = raced.job.model_copy(update={"facts": crowded})

    moods = tell(raced)

    assert moods.cause is MoodCause.THREADS
    assert "the ranks' threads fight for the cores" in say_moods(moods)


@pytest.mark.parametrize(("changes", "is_in_doubt"), [(ONE_THREAD, False), (SMALL, True)])
def test_a_slow_mood_that_the_strategy_is_shown_to_end_takes_nothing_of_its_gain(
    changes: dict[str, Value], is_in_doubt: bool
) -> None:
    """No race of the strategy itself met it; races of others with one thread did, and were not slow."""
    both = {**ONE_THREAD, "nccl_comm_num": 2}
    other = {"last_comm_group_size_MB": 4.0}
    raced = make_raced().launch()
    race(race(raced, SLOW, changes=both, search=True), (0.32, 0.31), changes=other, search=True)
    race(race(raced, FAST, changes=both, search=True), EVEN, changes=other, search=True)
    for _ in range(2):
        race(raced.launch(), FAST, changes=changes)

    assert (confirm(raced.record, changes, forced=False).moods.doubt > 0.0) is is_in_doubt


def test_what_a_setting_alone_loses_in_a_slow_mood_is_not_its_own_loss() -> None:
    """Else a third setting would have to make up for it in the strategy that has them all, and would be advised."""
    threads: dict[str, Value] = {"num_threads": 2}
    whole: dict[str, Value] = {**threads, **SMALL, "num_iteration_per_drop_scope": 30}
    raced = make_raced().launch()
    for level in (FAST, SLOW, FAST, SLOW, *[FAST] * 6):
        race(raced, level, changes=threads, search=True)
    arms = [(Purpose.SEARCH, changes, 0.0) for changes in (whole, threads, SMALL)]
    times = [[level * math.exp(0.01 * (step % 3)) for step in range(64)] for level in (0.1, 0.08, 0.08, 0.3)]
    raced.race(BASE, *arms, results=[Raced.make_result(each, (4,) * 16) for each in times])

    state = look(raced.record)
    assert state is not None
    assert Shares(state, Changes(whole)).find_core() == threads
