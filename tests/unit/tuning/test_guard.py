"""The paired test of the losses that a numeric or convergence strategy has to pass."""

from collections.abc import Callable

import pytest

from advisor.protocol.jobs import Budget
from advisor.protocol.knobs import Effect
from advisor.tuning.confirmation import confirm
from advisor.tuning.finals import choose_winner
from advisor.tuning.guard import GuardFinding, check_losses
from advisor.tuning.record import Record

from .simulated_cluster import QUIET, Changes, SimulatedCluster, make_job, make_spec


def check(loss: Callable[[Changes, int], float], allow: Effect = Effect.NUMERIC) -> GuardFinding:
    spec = make_spec(allow=allow, budget=Budget(max_trials=12, max_seconds=1e6))
    fast = "localsgd" if allow is Effect.CONVERGENCE else "fp16_allreduce"
    sim = SimulatedCluster(
        make_job(spec),
        speed=lambda changes: 1.5 if changes.get(fast) else 1.0,
        noise=QUIET,
        loss=loss,
    )
    sim.run()
    record = Record(sim.job, sim.history, sim.now)
    winner = choose_winner(record)
    assert winner is not None
    return check_losses(record, winner.effect, confirm(record, winner).pairs)


def falling(_: Changes, step: int) -> float:
    return 2.0 - step / 10_000


def test_an_equal_loss_passes_for_a_strategy_that_must_prove_it() -> None:
    assert check(falling, allow=Effect.CONVERGENCE).passed


def test_rounding_is_refused_only_when_harm_is_shown() -> None:
    undecided = GuardFinding(False, "Too noisy.")
    assert undecided.admits(Effect.NUMERIC)
    assert not undecided.admits(Effect.CONVERGENCE)
    assert not GuardFinding(False, "Worse.", harmed=True).admits(Effect.NUMERIC)
    assert not check(falling).harmed


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (lambda changes, step: falling(changes, step) + (0.4 if changes else 0.0), "refuses it"),
        (lambda _changes, _step: 1.0, "did not fall"),
    ],
)
def test_a_worse_or_unreadable_loss_does_not(loss: Callable[[Changes, int], float], words: str) -> None:
    finding = check(loss)

    assert not finding.passed
    assert words in finding.sentence


def test_exact_strategies_need_no_proof() -> None:
    assert check(lambda _changes, _step: 1.0, allow=Effect.EXACT).passed
