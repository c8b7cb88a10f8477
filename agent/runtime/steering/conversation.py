"""The talk with the agent, or with a training's own tuner, at step boundaries: hello, then race after race."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, Mapping, Optional

from ..guard import FAILED
from ..levers.lever import Training
from ..link import beat
from ..link.control import PROTOCOL, AgentLost
from ..link.rank_output import say
from ..link.trouble import describe_trouble
from ..observe.memory import count_free_host_bytes
from ..observe.recorder import StepMarks
from ..races.agreement import copy_parameters
from ..races.order import parse_race
from ..races.parts import RankParts
from ..races.race import Race
from ..races.snapshot import explain_no_snapshot
from .production import COPIED, NOT_COPIED, Production
from .steering import Steering

AGENT_TIMEOUT_S = 900.0
"""An instruction may take a while: the server searches, other nodes' agents join."""


class Conversation(Steering):
    """Rank 0 alone speaks with the agent."""

    patience_s = AGENT_TIMEOUT_S
    """How long rank 0 waits for an instruction."""
    saves_training = True
    """Whether races may change the training, which is saved before them and put back."""

    def __init__(self, parts: RankParts) -> None:
        super().__init__(parts)
        self._race: Optional[Race] = None
        self._races_finished = 0

    def _begin(self) -> None:
        found = self._describe_script()
        if self._parts.rank == 0:
            found["baseline"].update(self._process.environment.base)
        self._follow({"kind": "hello", "protocol": PROTOCOL, **found})

    def _list_refusals(self, training: Training) -> Dict[str, str]:
        refusals = super()._list_refusals(training)
        if not self.saves_training:
            return refusals
        local_world_size = self._process.environment.local_world_size
        reason = explain_no_snapshot(training, local_world_size, count_free_host_bytes())
        return refusals if reason is None else {**refusals, **self._levers.refuse_inexact(reason)}

    def _advance(self, step: StepMarks) -> bool:
        race = self._race
        assert race is not None
        if race.advance(step):
            self._races_finished += 1
            self._follow(describe_results(race))
        return race.disturbed or race is not self._race

    def finish_script(self) -> None:
        """The script ended by itself, perhaps inside a race: what was timed is sent if it is enough."""
        race = self._race
        steps = self._process.watch.training_steps
        is_enough = race is not None and race.conclude_early()
        if self._parts.rank != 0:
            return
        agent = self._process.reach_agent()
        if race is not None and is_enough:
            try:
                agent.ask(describe_results(race), timeout_s=5.0)
            except AgentLost:
                return  # the results were sent; the ranks need no reply any more
        elif self._races_finished == 0:
            needed = f"{race.least_steps} steps" if race is not None else "measured steps"
            agent.send_last(describe_trouble("too_short", steps=steps, needed=needed))
        else:
            race_id = race.race_id if race is not None else None
            done = race.steps_done if race is not None else 0
            agent.send_last(
                {"kind": "script_ended", "race_id": race_id, "steps_done": done, "total_steps": steps}
            )

    # The talk.

    def _follow(self, message: Mapping[str, Any]) -> None:
        """Sends rank 0's message, and begins the race that comes back on every rank."""
        parts = self._parts
        while True:
            parts.enter(beat.WAITING)
            reply: Dict[str, Any] = {}
            if parts.rank == 0:
                reply = self._ask_agent(message)
            reply = parts.exchange.broadcast(reply, "the agent's instruction", self.patience_s + 60.0)
            if reply.get("kind") != "race":
                self._end(reply)
                return
            parts.enter(beat.SWITCHING)
            self._race = Race(parse_race(reply, self._process.environment.base), parts)
            if not self._race.advance(None):
                return
            # None of its strategies can be switched to in a live process.
            message = describe_results(self._race)

    def _ask_agent(self, message: Mapping[str, Any]) -> Dict[str, Any]:
        try:
            reply = self._process.reach_agent().ask(message, self.patience_s)
            if reply.get("kind") in ("race", "end"):
                return {**reply, "exit_code": 0}
            reason = f"The agent sent an instruction of an unknown kind: {reply.get('kind')!r}."
        except AgentLost as lost:
            reason = str(lost)
        # The other ranks wait for this reply: they must hear the end from here.
        return {"kind": "end", "reason": reason, "exit_code": FAILED}

    def _end(self, reply: Mapping[str, Any]) -> None:
        # Rank 0 may host the store: it leaves last.
        self._parts.exchange.gather(True, "the farewell", 10.0)
        self._process.end(int(reply.get("exit_code", 0)), str(reply.get("reason", "")))


def describe_results(race: Race) -> Dict[str, Any]:
    """The message for the agent; only rank 0 has results to fill it."""
    results = {block: asdict(result) for block, result in race.results.items()}
    return {"kind": "race", "race_id": race.race_id, "results": results}


class OnlineTuning(Conversation):
    """The first steps and the races of a trial; then the strategy that was found, as if it had been given."""

    patience_s = 50.0
    saves_training = False

    def __init__(self, parts: RankParts) -> None:
        super().__init__(parts)
        self._found: Dict[str, Any] = {}

    def _describe_script(self) -> Dict[str, Any]:
        self._found = super()._describe_script()
        return self._found

    def finish_script(self) -> None:
        self._process.hang_up()

    def _follow(self, message: Mapping[str, Any]) -> None:
        """In a real training nothing is tried any more once a race has left the ranks apart."""
        drifted = str(self._parts.share(self._parts.drifted, "whether the ranks hold the same parameters"))
        if not drifted:
            super()._follow(message)
            return
        copies = bool((self._process.environment.strategy or {}).get("copies_parameters"))
        if copies:
            copy_parameters(self._parts.list_replicas())
        self._end({"reason": f"{drifted} {COPIED if copies else NOT_COPIED}", "exit_code": FAILED})

    def _end(self, reply: Mapping[str, Any]) -> None:
        environment = self._process.environment
        if reply.get("exit_code") and self._parts.rank == 0:
            say(f"Tuning is over, the training goes on as it was: {reply.get('reason')}")
        self._process.hang_up()
        changes = {**environment.base, **(reply.get("overrides") or {})}
        strategy = {**(environment.strategy or {}), "changes": changes}
        self.successor = production = Production(self._parts, strategy, self._found)
        production.take_over()
