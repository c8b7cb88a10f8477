"""A job that races two commands: each one's script is known by itself, and neither may change under it."""

from dataclasses import replace
from typing import Any

from advisor.protocol.asked.jobs import JobSpec, JobState
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.messages import Assignment, HelloReport
from advisor.protocol.measured.trials import Outcome, SessionState
from advisor.protocol.training.own_knob_texts import read_commands
from advisor.services import jobs
from advisor.services.measuring import sessions
from advisor.tuning.decisions import Decision, Launch
from tests.unit.services.scripted_tuning import ScriptedTuning, make_facts
from tests.unit.services.world import ADA, World

B = Changes({"command": "B"})


class _InTurns(ScriptedTuning):
    """Launches A and B in turns."""

    def plan(self, job: Any, history: Any, *known: Any, **asked: Any) -> Decision:
        """Decide by the script, every other launch for B."""
        decision = super().plan(job, history, *known, **asked)
        if isinstance(decision, Launch) and len(history.sessions) % 2:
            return replace(decision, cold=B)
        return decision


def test_what_each_command_runs_is_kept_and_held_against_itself(world: World) -> None:
    world.tuning = _InTurns()
    own = read_commands(["torchrun train.py", "torchrun train.py --fast"], Effect.EXACT)
    spec = JobSpec.model_validate({"workload": {"command": ("torchrun", "train.py"), "own": [own]}})
    with world.work() as work:
        job = jobs.submit_job(work, spec, ADA, None, world.now)
    agent = world.register("one")

    def launch(digest: str) -> Assignment:
        (place,) = world.start_session(agent)
        facts = make_facts().model_copy(update={"sources": {"train.py": digest}})
        with world.work() as work:
            hello = HelloReport(generation=place.generation, facts=facts, baseline={})
            sessions.hear_hello(work, place.session_id, agent, hello, world.now)
        return place

    # In another worktree the file of the same name is another one.
    for digest, cold in (("a", Changes()), ("b", B), ("a", Changes()), ("b", B)):
        place = launch(digest)
        assert place.cold == cold
        assert world.beat(place, agent).state is SessionState.RUNNING
        world.end(place, agent, Outcome.LOST)
    kept = [session.facts for session in world.history(job.id).sessions]
    assert [facts and facts.sources["train.py"] for facts in kept] == [None, "b", None, "b"]
    world.end(launch("a"), agent, Outcome.LOST)
    edited = launch("c")
    assert world.beat(edited, agent).state is SessionState.ENDING
    world.end(edited, agent)
    world.keep_up()
    assert world.job(job.id).state is JobState.FAILED
