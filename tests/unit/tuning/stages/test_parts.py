"""The burden of proof: a setting is advised only if the verdict's launches show that it helps."""

import pytest

from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.asked.jobs import Budget
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Purpose
from advisor.tuning.decisions import Candidate
from advisor.tuning.explain.advice import build_advice
from advisor.tuning.search.state import look
from advisor.tuning.stages.confirmation import next_confirmation
from advisor.tuning.stages.parts import compare, list_parts
from advisor.tuning.stages.turns import Turn
from tests.unit.tuning.raced import BASE, Arm, Raced
from tests.unit.tuning.simulated_cluster import make_job, make_spec

SIZE: dict[str, Value] = {"fuse_grad_size_in_MB": 4.0}
THREADS: dict[str, Value] = {"num_threads": 2}
GARBAGE: dict[str, Value] = {"num_iteration_per_drop_scope": 30}
CORE: dict[str, Value] = {**SIZE, **THREADS}
WHOLE: dict[str, Value] = {**CORE, **GARBAGE}


def searched() -> Raced:
    """The search's winner is all three; two of them carry its gain."""
    job = make_job(make_spec(budget=Budget(max_trials=4, max_seconds=1000)))
    raced = Raced(job, 0.002).launch().race(BASE)
    raced.race(BASE, (Purpose.SEARCH, WHOLE, 0.3))
    return raced.race(
        (Purpose.REVERT, WHOLE, 0.3), (Purpose.REVERT, CORE, 0.298), (Purpose.REVERT, {**SIZE, **GARBAGE}, 0.2),
        (Purpose.REVERT, {**THREADS, **GARBAGE}, 0.1),
    )  # fmt: skip


def confirmed(*arms: tuple[dict[str, Value], float], launches: int = 4) -> Raced:
    raced = searched()
    for _ in range(launches):
        line_up: list[Arm] = [BASE, *((Purpose.CONFIRM, changes, gain) for changes, gain in arms)]
        raced.launch().race(*line_up)
    return raced


def advise(raced: Raced) -> Advice:
    return build_advice(raced.job, raced.record.history, raced.now)


def list_left(raced: Raced, core: dict[str, Value] = CORE) -> list[Changes]:
    state = look(raced.record)
    assert state is not None
    return [
        part.changes for part in list_parts(state, Candidate(Purpose.CONFIRM, Changes(core), "The core."))
    ]


def test_beside_the_core_race_the_whole_and_the_core_without_each_setting() -> None:
    assert set(list_left(searched())) == {Changes(WHOLE), Changes(SIZE), Changes(THREADS)}


@pytest.mark.parametrize(("gain", "arms"), [(0.5, 4), (0.05, 2)])
def test_parts_race_in_a_short_budget_where_the_core_s_lead_is_plain(gain: float, arms: int) -> None:
    """The core never raced as it is: what its best part showed in the search tells how plain its lead is."""
    job = make_job(make_spec(budget=Budget(max_trials=4, max_seconds=80)))
    raced = Raced(job, 0.01).launch().race(BASE)
    raced.race(BASE, (Purpose.SEARCH, WHOLE, gain), (Purpose.SEARCH, THREADS, gain))
    state = look(raced.record)
    assert state is not None
    core = Candidate(Purpose.CONFIRM, Changes(CORE), "The core.")

    turn = next_confirmation(raced.record, None, core, (), list_parts(state, core))

    assert isinstance(turn, Turn)
    assert len(turn.arms) == arms


def test_what_is_told_races_no_more() -> None:
    raced = confirmed((CORE, 0.3), (WHOLE, 0.3), (SIZE, 0.1), (THREADS, 0.2))

    assert list_left(raced) == []


def test_settings_that_are_missed_are_advised_and_add_up() -> None:
    advice = advise(confirmed((CORE, 0.3), (WHOLE, 0.3), (SIZE, 0.1), (THREADS, 0.2)))

    assert (advice.verdict, advice.changes, advice.left) == (Verdict.CHANGE, CORE, GARBAGE)
    assert advice.gain is not None
    effects = {reason.knob: reason.effect for reason in advice.reasons}
    size, threads = effects["fuse_grad_size_in_MB"], effects["num_threads"]
    assert size is not None
    assert threads is not None
    lost_s = 0.1 * (1 - 1 / advice.gain.ratio)
    assert abs(size.saved_s + threads.saved_s - lost_s) < 0.001
    assert threads.low_s > size.high_s > size.low_s > 0


def test_a_setting_that_is_not_missed_is_left_as_it_is() -> None:
    advice = advise(confirmed((CORE, 0.3), (WHOLE, 0.3), (SIZE, 0.1), (THREADS, 0.299)))

    assert (advice.verdict, advice.changes) == (Verdict.CHANGE, THREADS)
    assert advice.left == {**SIZE, **GARBAGE}


@pytest.mark.parametrize(("threads_alone", "advised"), [(0.28, CORE), (0.297, THREADS)])
def test_a_setting_that_is_left_open_stays_in_its_group_unless_it_was_seen_to_bring_nothing(
    threads_alone: float, advised: dict[str, Value]
) -> None:
    raced = confirmed((CORE, 0.3), launches=3)
    alone = (Purpose.CONFIRM, THREADS, threads_alone)
    raced.launch().race(BASE, (Purpose.CONFIRM, CORE, 0.3), alone, cycles=2)

    advice = advise(raced.launch().race(BASE, alone, (Purpose.CONFIRM, SIZE, 0.1)))

    assert (advice.verdict, advice.changes) == (Verdict.CHANGE, advised)


def test_the_whole_is_advised_where_it_is_shown_to_be_faster() -> None:
    advice = advise(confirmed((CORE, 0.3), (WHOLE, 0.4), (SIZE, 0.1), (THREADS, 0.2)))

    assert (advice.verdict, advice.changes, advice.left) == (Verdict.CHANGE, WHOLE, {})
    told = {reason.knob for reason in advice.reasons if reason.effect is not None}
    assert "num_iteration_per_drop_scope" in told


def test_the_whole_is_not_advised_where_the_trimming_saw_no_more_of_it() -> None:
    raced = confirmed((CORE, 0.3), (WHOLE, 0.34), (SIZE, 0.1), (THREADS, 0.2))
    assert advise(raced).changes == WHOLE
    trimmed = Raced(raced.job).launch().race(BASE)
    for _ in range(3):
        trimmed = trimmed.race((Purpose.REVERT, CORE, 0.3), (Purpose.REVERT, WHOLE, 0.24))
    for _ in range(2):
        arms = [(Purpose.CONFIRM, c, g) for c, g in ((CORE, 0.3), (WHOLE, 0.34), (SIZE, 0.1), (THREADS, 0.2))]
        trimmed = trimmed.launch().race(BASE, *arms)

    assert advise(trimmed).changes == CORE


def test_nothing_is_advised_where_the_core_is_not_proved_whatever_its_parts_are() -> None:
    advice = advise(confirmed((CORE, 0.0), (WHOLE, 0.1), (SIZE, 0.1), (THREADS, 0.0)))

    assert advice.verdict is not Verdict.CHANGE


def test_the_look_is_that_of_the_larger_set() -> None:
    raced = confirmed((CORE, 0.3), (THREADS, 0.2))

    found = compare(raced.record, CORE, THREADS, forced=True)

    assert found is not None
    assert (found.decision, found.launches) == ("change", 2)
    assert abs(found.mean - 0.1) < 0.01
