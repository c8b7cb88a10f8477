"""Who sits in the first race where more than exact strategies is allowed."""

from dataclasses import replace

from advisor.protocol.asked.jobs import Budget
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.measured.trials import Purpose, Session, Trial
from tests.unit.tuning.simulated_cluster import QUIET, SimulatedCluster, make_job, make_spec

KNOBS = ("fuse_grad_size_in_MB", "nccl_comm_num", "fp16_allreduce")


def race_first(allow: Effect, knobs: tuple[str, ...] = KNOBS) -> list[Trial]:
    """The strategies of the first race of a job whose ranks cannot tell where a step's time goes."""

    def hide(_: Changes, __: Session, result: BlockResult) -> BlockResult:
        return replace(result, phases=Phases(), calibration=None)

    spec = make_spec(knobs=knobs, allow=allow, budget=Budget(max_trials=6, max_seconds=500))
    sim = SimulatedCluster(make_job(spec), noise=QUIET, alter=hide)
    sim.run()
    searched = [b for b in sim.blocks if sim.trials[b.trial_number].purpose is Purpose.SEARCH]
    return [sim.trials[b.trial_number] for b in searched if b.race == searched[0].race]


def test_the_highest_allowed_rung_has_seats_of_the_first_race_beside_exact_strategies() -> None:
    first = race_first(Effect.NUMERIC)

    assert [t.effect for t in first] == [Effect.NUMERIC, Effect.NUMERIC, Effect.EXACT]
    assert {"fuse_grad_size_in_MB", "nccl_comm_num", "fp16_allreduce"} <= first[0].changes.keys()
    assert first[1].changes == {"fp16_allreduce": True}


def test_another_optimisation_has_a_seat_where_it_is_allowed() -> None:
    first = race_first(Effect.CONVERGENCE, (*KNOBS, "localsgd", "localsgd_k_steps"))

    assert [t.effect for t in first] == [Effect.NUMERIC, Effect.CONVERGENCE, Effect.NUMERIC]


def test_only_exact_strategies_race_where_nothing_else_is_allowed() -> None:
    assert {t.effect for t in race_first(Effect.EXACT)} == {Effect.EXACT}
