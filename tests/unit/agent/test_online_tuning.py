"""A training that tunes itself, in simulation."""

from collections.abc import Sequence
from typing import cast

import pytest

from advisor.course.played import Died, Raced
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import Block, Purpose, Trial
from advisor.tuning.decisions import Candidate, Race
from agent.production import tuning
from agent.production.tuning import Limits, OnlineJob
from agent.sessions.control import Hello
from tests.unit.tuning.simulated_cluster import Noise, SimulatedCluster, make_facts, make_job

_COLLECTOR = "num_iteration_per_drop_scope"


class SimulatedTraining(OnlineJob):
    """Its races are played by a simulated cluster whose steps wait for the collector of garbage."""

    def __init__(self, seed: int) -> None:
        facts = make_facts(
            nodes=1, world_size=2, gradient_bytes=70_000, step_time_s_hint=0.025, cpu_threads=1
        )
        super().__init__(
            cast("tuning._Line", None),
            Hello(facts, {"num_threads": 1}, {}),
            Limits(18.0, 60.0, ("num_threads",)),
            ("torchrun", "train.py"),
        )
        self.cluster = SimulatedCluster(
            make_job(self.job.spec),
            speed=self.speed,
            step_s=0.025,
            seed=seed,
            noise=Noise(step=0.1, arm=0.02),
        )

    @staticmethod
    def speed(changes: Changes) -> float:
        """Twice as fast without collections; workers cost something."""
        workers = 0.93 if "loader_num_workers" in changes else 1.0
        return workers * (2.0 if changes.get(_COLLECTOR, 1) != 1 else 1.0)

    def play_race(self, race: Race, trials: Sequence[Trial], arms: Sequence[Block]) -> Raced:
        """Let the simulated ranks race."""
        self.cluster.sessions = self.sessions
        played = self.cluster.play_race(race, trials, arms)
        assert not isinstance(played, Died)
        return played


@pytest.mark.parametrize("misjudged", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_gain_is_found_where_the_winners_core_is_misjudged(
    seed: int, misjudged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short races tell badly which setting carries the gain: the collector's was taken for nothing in two of five."""
    if misjudged:
        core = Candidate(Purpose.CONFIRM, Changes({"loader_num_workers": 1}), "Carries nothing.")
        monkeypatch.setattr(tuning, "choose_trimmed", lambda _: core)
    job = SimulatedTraining(seed)
    job.search()
    changes, interval = job.decide_verdict()
    assert interval is not None
    assert _COLLECTOR in changes, (changes, interval)
    assert 1.2 < interval.low < (2.0 if "loader_num_workers" not in changes else 1.86) < interval.high * 1.01
