"""Agents that play whole jobs with the services: they take places, measure what they are told, and obey."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from advisor.errors import SessionNotRunning, StaleSession
from advisor.protocol.base import Value
from advisor.protocol.measured.messages import Assignment, HelloReport, MemberState
from advisor.protocol.measured.results import BlockResult, Phases
from advisor.protocol.measured.trials import Outcome, RacePlan, SessionState
from advisor.services.measuring import sessions
from tests.unit.services.world import World
from tests.unit.tuning.simulated_cluster import make_facts

Speed = Callable[[Mapping[str, Value]], float]


def measure_steps(changes: Mapping[str, Value], speed: Speed, wobble: float) -> BlockResult:
    """Return the turns of one arm: six of four steps, each of 0.1 s over the strategy's speed, give or take 1 %."""
    step = 0.1 / speed(changes)
    times = tuple(step * (1 + 0.01 * ((7 * i) % 5 - 2) + wobble * ((5 * i) % 7 - 3)) for i in range(24))
    return BlockResult(
        steps=24,
        step_time_s=times,
        segments=(4,) * 6,
        samples_per_step=64,
        samples=64 * 24,
        wall_s=sum(times),
        phases=Phases(
            forward_s=0.2 * step, backward_s=0.3 * step, optimizer_s=0.1 * step, exposed_comm_s=0.4 * step
        ),
        bucket_bytes=(2**20,) * (3 if changes else 5),
        consumed=dict.fromkeys(changes, "in force"),
    )


@dataclass
class Fleet:
    """Agents of one node each; a gang of several nodes is led by the agent that got node rank 0."""

    world: World
    names: list[str]
    speed: Speed = lambda _: 1.0
    race_ticks: int = 1
    """Ticks that a race takes."""
    ids: dict[str, str] = field(default_factory=dict)
    places: dict[str, Assignment] = field(default_factory=dict)
    races: dict[str, RacePlan] = field(default_factory=dict)
    ages: dict[str, int] = field(default_factory=dict)
    """Ticks for which each agent's race has been run."""
    told: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    """Agents that neither measure nor beat any more."""
    crashing: set[str] = field(default_factory=set)
    """Agents whose launches crash before anything is measured."""
    reports: int = 0
    most_at_once: int = 0
    """Most races that were being run at the same time."""

    def __post_init__(self) -> None:
        for name in self.names:
            self.ids[name] = self.world.register(name)

    def tick(self, seconds: float = 1.0) -> None:
        """Let the keeper look, every agent that lives do one thing, and time pass."""
        self.world.keep_up()
        for name in self.names:
            if name not in self.dead:
                self._act(name)
        self.most_at_once = max(self.most_at_once, len(self.races))
        self.world.wait(seconds)

    def play(self, job_id: str, most: int = 3000) -> None:
        """Carry a job to its end; fails the test when it does not end."""
        for _ in range(most):
            if self.world.job(job_id).state.is_final:
                return
            self.tick()
        raise AssertionError(f"the job did not end: {self.world.job(job_id)}")

    def _act(self, name: str) -> None:
        agent_id = self.ids[name]
        place = self.places.get(name) or self.world.poll(agent_id)
        if place is None:
            return
        self.places[name] = place
        try:
            reply = self.world.beat(place, agent_id, MemberState.READY)
            if reply.state is SessionState.RUNNING and name in self.crashing:
                self.world.end(place, agent_id, Outcome.CRASHED, "No module named torch.")
                self._forget(name)
            elif reply.state is SessionState.RUNNING and place.node_rank == 0:
                self._measure(name, place)
            elif reply.state is SessionState.ENDING:
                self._leave(name, place)
        except StaleSession:
            self._forget(name)

    def _measure(self, name: str, place: Assignment) -> None:
        agent_id = self.ids[name]
        if place.session_id not in self.told:
            self.told.add(place.session_id)
            facts = make_facts(world_size=2, nodes=1, local_world_size=2)
            hello = HelloReport(
                generation=place.generation, facts=facts, baseline={"fuse_grad_size_in_MB": 25.0}
            )
            with self.world.work() as work:
                sessions.hear_hello(work, place.session_id, agent_id, hello, self.world.now)
        race = self.races.get(name)
        if race is not None:
            self.ages[name] += 1
            if self.ages[name] < self.race_ticks:
                return
            self.races.pop(name)
            results = []
            for arm in race.arms:
                self.reports += 1
                wobble = 0.001 * ((self.reports * 5) % 7 - 3) / 3
                results.append(measure_steps(arm.overrides, self.speed, wobble))
            self.world.report(place, agent_id, race, results)
        try:
            answer = self.world.next(place, agent_id)
        except SessionNotRunning:
            return
        if answer.race is None:
            self._leave(name, place)
        else:
            self.races[name] = answer.race
            self.ages[name] = 0

    def _leave(self, name: str, place: Assignment) -> None:
        self.world.end(place, self.ids[name], Outcome.FINISHED, "Asked to end.")
        self._forget(name)

    def _forget(self, name: str) -> None:
        self.places.pop(name, None)
        self.races.pop(name, None)
