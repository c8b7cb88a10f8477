"""Launches that break off: whose fault that is, and what the answer says of it."""

from dataclasses import replace

import pytest

from advisor.protocol.answers.advice import Action, Advice, Verdict
from advisor.protocol.asked.jobs import Budget
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import Outcome, Purpose, Session
from advisor.tuning.decisions import Fail
from tests.unit.tuning.simulated_cluster import QUIET, SimulatedCluster, make_facts, make_job, make_spec

pytestmark = pytest.mark.thorough

PLACE = "The script crashed after {step} steps: ValueError: broken sample (train.py:12 (load), rank 1)."
FAULTS = (Outcome.CRASHED, Outcome.HUNG, Outcome.OUT_OF_MEMORY)


def simulate(seconds: float = 900.0, **fields: object) -> SimulatedCluster:
    spec = make_spec(budget=Budget(max_trials=8, max_seconds=seconds))
    return SimulatedCluster(make_job(spec, facts=make_facts()), noise=QUIET, **fields)  # type: ignore[arg-type]


def breaks_off(step: int, outcome: Outcome = Outcome.CRASHED):  # type: ignore[no-untyped-def]
    return lambda index: (step + index % 2, outcome, PLACE.format(step=step + index % 2))


@pytest.mark.parametrize(("step", "outcome"), list(zip([60, 150, 400], FAULTS, strict=True)))
def test_a_script_that_breaks_off_at_one_step_is_told_and_blames_no_strategy(
    step: int, outcome: Outcome
) -> None:
    sim = simulate(script_fault=breaks_off(step, outcome))

    answer = sim.run()

    assert isinstance(answer, Advice)
    assert answer.verdict is Verdict.UNDECIDED
    assert answer.headline.startswith("Not decided: the script itself ")
    assert f"after {step}" in answer.headline
    assert "train.py:12 (load), rank 1" in answer.headline
    assert "by hand" in answer.headline
    assert answer.action is Action.MEND_SCRIPT
    assert len(sim.sessions) <= 3, "what fails by itself is launched again and again"
    assert not [t for t in sim.trials if t.outcome in FAULTS]


@pytest.mark.parametrize("outcome", FAULTS)
def test_a_script_that_breaks_off_in_the_probe_fails_the_job_with_the_place(outcome: Outcome) -> None:
    answer = simulate(script_fault=breaks_off(9, outcome)).run()

    assert isinstance(answer, Fail)
    assert "as it stands" in answer.because
    assert "train.py:12" in answer.because


def test_collectives_that_do_not_pair_up_need_not_fail_by_hand() -> None:
    why = "The script crashed after 9 steps: RuntimeError: Is there a distributed collective mismatch? (rank 1)."
    answer = simulate(script_fault=lambda _: (9, Outcome.CRASHED, why)).run()

    assert isinstance(answer, Fail)
    assert "Some rank makes a collective that another one does not make" in answer.because
    assert "to see the same" not in answer.because


def test_a_rank_that_is_killed_at_one_step_in_every_launch_is_the_scripts() -> None:
    sim = simulate(script_fault=breaks_off(150, Outcome.LOST))
    answer = sim.run()

    assert isinstance(answer, Advice)
    assert "the script itself is killed after 150 " in answer.headline
    assert len(sim.sessions) <= 3, "what is killed by itself is launched again and again"


def test_a_strategy_under_which_launches_die_is_blamed_and_not_the_script() -> None:
    def fault(_session: int, _ordinal: int, changes: Changes) -> Outcome | None:
        return Outcome.CRASHED if "fuse_grad_size_in_MB" in changes else None

    sim = simulate(3000, session_fault=fault)

    answer = sim.run()

    assert isinstance(answer, Advice)
    assert "script itself" not in answer.headline
    failed = [t for t in sim.trials if t.purpose is Purpose.SEARCH and t.outcome is Outcome.CRASHED]
    assert failed
    assert all("fuse_grad_size_in_MB" in t.changes for t in failed)
    assert answer.watch == ()


def test_a_script_that_fails_at_random_steps_at_one_place_is_told_and_blames_no_strategy() -> None:
    steps = [240, 150, 200, 90, 300, 120, 180, 260]
    sim = simulate(
        900, script_fault=lambda index: (s := steps[index % 8], Outcome.CRASHED, PLACE.format(step=s))
    )

    answer = sim.run()

    assert isinstance(answer, Advice)
    told = [answer.headline, *answer.watch]
    assert any("script itself fails" in sentence for sentence in told), told
    assert not [t for t in sim.trials if t.outcome in FAULTS]


@pytest.mark.parametrize("steps", [30, 60])
def test_a_script_that_is_too_short_says_how_many_steps_are_needed(steps: int) -> None:
    sim = simulate(steps_per_session=steps)

    answer = sim.run()

    said = answer.headline if isinstance(answer, Advice) else answer.because
    assert f"he script makes only {steps} steps" in said
    assert "at least 61 in one launch" in said
    assert len(sim.sessions) <= 2
    if isinstance(answer, Advice):
        assert answer.action is Action.MEND_SCRIPT


def test_losses_that_are_not_finite_are_the_scripts_where_the_baselines_are_alike() -> None:
    def spoil(_changes: Changes, _session: Session, result: BlockResult) -> BlockResult:
        bad = result.steps // 24
        return replace(result, nonfinite_losses=bad, diverged=bad > 0)

    sim = simulate(
        3000, alter=spoil, speed=lambda changes: 1.2 if changes.get("fuse_grad_size_in_MB") == 4.0 else 1.0
    )

    answer = sim.run()

    assert isinstance(answer, Advice)
    assert answer.verdict is Verdict.CHANGE
    assert "The script's own loss is not finite in 4 % of the baseline's steps" in answer.watch[0]
    assert not [t for t in sim.trials if t.outcome is Outcome.DIVERGED]


def test_restarts_that_are_not_in_force_are_told_where_the_script_fails() -> None:
    sim = simulate(script_fault=breaks_off(150))
    command = ("torchrun", "--max-restarts", "3", "--nproc-per-node", "2", "train.py")
    workload = sim.job.spec.workload.model_copy(update={"command": command})
    sim.job = sim.job.model_copy(update={"spec": sim.job.spec.model_copy(update={"workload": workload})})

    answer = sim.run()

    assert isinstance(answer, Advice)
    assert "Its --max-restarts 3 is not in force in trials" in answer.headline
