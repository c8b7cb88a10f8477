"""Which node's end says how a gang's session ended, in whatever order their reports come."""

from itertools import permutations

import pytest

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.messages import LAUNCH_FAILED, LIVED_OUT, HelloReport, SessionEnd, Trouble
from advisor.protocol.measured.trials import Outcome
from advisor.services.measuring import sessions
from tests.unit.services.scripted_tuning import make_facts
from tests.unit.services.world import World

_REMEDY = "The script failed on node {node}: exit code 1."
_ORDERS = list(permutations(range(3)))


class Gang:
    """Three nodes of a job, in a session that runs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.job_id = world.submit(nodes=3).id
        self.agents = [world.register(name) for name in ("one", "two", "three")]
        self.places = world.start_session(*self.agents)

    def greet(self) -> None:
        """Node 0's command has told its first steps."""
        hello = HelloReport(generation=self.places[0].generation, facts=make_facts(), baseline={})
        with self.world.work() as work:
            sessions.hear_hello(work, self.places[0].session_id, self.agents[0], hello, self.world.now)

    def end(self, node: int, end: SessionEnd) -> None:
        with self.world.work() as work:
            sessions.leave_session(work, self.places[node].session_id, self.agents[node], end, self.world.now)

    def end_all(self, order: tuple[int, ...], ends: dict[int, SessionEnd]) -> None:
        for node in order:
            self.end(node, ends[node])
        self.world.keep_up()

    def made(
        self, outcome: Outcome, reason: str, *, trouble: Trouble | None = None, steps: int = 0
    ) -> SessionEnd:
        generation = self.places[0].generation
        return SessionEnd(
            generation=generation, outcome=outcome, reason=reason, trouble=trouble, total_steps=steps
        )

    def lost_its_peer(self, node: int) -> SessionEnd:
        """What a node reports whose silent command ended with exit code 1, for whatever reason."""
        sentence = _REMEDY.format(node=node)
        trouble = Trouble(code=LAUNCH_FAILED, sentence=sentence)
        return self.made(Outcome.CRASHED, sentence, trouble=trouble)

    def how_it_ended(self) -> tuple[Outcome | None, str, JobState]:
        session = self.world.history(self.job_id).sessions[0]
        return session.outcome, session.reason, self.world.job(self.job_id).state


@pytest.mark.parametrize("order", _ORDERS)
@pytest.mark.parametrize("as_one_says", [Outcome.CRASHED, Outcome.FINISHED])
def test_nodes_that_lost_one_that_was_asked_to_end_did_not_fail(
    world: World, order: tuple[int, ...], as_one_says: Outcome
) -> None:
    gang = Gang(world)
    world.measure(gang.places[0], gang.agents[0])
    world.measure(gang.places[0], gang.agents[0])
    because = world.next(gang.places[0], gang.agents[0]).end_because
    assert because
    third = gang.lost_its_peer(2) if as_one_says is Outcome.CRASHED else gang.made(as_one_says, "Asked to.")
    gang.end_all(order, {0: gang.made(Outcome.FINISHED, because), 1: gang.lost_its_peer(1), 2: third})
    assert gang.how_it_ended() == (Outcome.FINISHED, because, JobState.FINISHED)


@pytest.mark.parametrize("order", _ORDERS)
@pytest.mark.parametrize("was_seen", [True, False])
@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (Outcome.LOST, "The agent one was stopped."),
        (Outcome.HUNG, "The command wrote no line for 60 s."),
        (Outcome.FINISHED, f"{LIVED_OUT} of 300 s."),
    ],
)
def test_nodes_that_lost_one_that_its_agent_ended_did_not_fail(
    world: World, order: tuple[int, ...], was_seen: bool, outcome: Outcome, reason: str
) -> None:
    gang = Gang(world)
    if was_seen:
        gang.greet()
    ends = {0: gang.made(outcome, reason), 1: gang.lost_its_peer(1), 2: gang.lost_its_peer(2)}
    gang.end_all(order, ends)
    assert gang.how_it_ended() == (outcome, reason, JobState.RUNNING)


@pytest.mark.parametrize("order", _ORDERS)
def test_trouble_that_node_0_met_is_told_and_not_what_followed_from_it(
    world: World, order: tuple[int, ...]
) -> None:
    gang = Gang(world)
    trouble = Trouble(code="disk_filled", sentence="The session filled the disk.")
    ends = {
        0: gang.made(Outcome.CRASHED, trouble.sentence, trouble=trouble),
        1: gang.lost_its_peer(1),
        2: gang.lost_its_peer(2),
    }
    gang.end_all(order, ends)
    assert gang.how_it_ended() == (Outcome.CRASHED, trouble.sentence, JobState.FAILED)


@pytest.mark.parametrize("order", _ORDERS)
def test_node_that_fails_before_the_first_step_of_all_fails_the_job(
    world: World, order: tuple[int, ...]
) -> None:
    gang = Gang(world)
    ends = {
        0: gang.made(Outcome.FINISHED, "The server ended the session."),
        1: gang.lost_its_peer(1),
        2: gang.made(Outcome.FINISHED, "The server ended the session."),
    }
    gang.end_all(order, ends)
    assert gang.how_it_ended() == (Outcome.CRASHED, _REMEDY.format(node=1), JobState.FAILED)


@pytest.mark.parametrize("order", _ORDERS)
def test_node_that_dies_after_the_script_was_seen_to_train_ends_its_launch_only(
    world: World, order: tuple[int, ...]
) -> None:
    gang = Gang(world)
    gang.greet()
    ends = {
        0: gang.made(Outcome.FINISHED, "The server ended the session."),
        1: gang.lost_its_peer(1),
        2: gang.made(Outcome.FINISHED, "The server ended the session."),
    }
    gang.end_all(order, ends)
    assert gang.how_it_ended() == (Outcome.CRASHED, _REMEDY.format(node=1), JobState.RUNNING)


@pytest.mark.parametrize("first", [1, 2])
def test_node_that_fell_silent_is_the_cause_of_a_launch_that_failed_on_another(
    world: World, first: int
) -> None:
    gang = Gang(world)
    gang.end(first, gang.lost_its_peer(first))
    for _ in range(6):
        world.wait(18)
        world.keep_up()
    outcome, reason, state = gang.how_it_ended()
    assert (outcome, state) == (Outcome.LOST, JobState.RUNNING)
    assert "exit code" not in reason
