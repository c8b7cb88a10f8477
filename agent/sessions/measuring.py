"""What rank 0's runtime says, passed on to the server race by race, and how that ends a session."""

import threading
from collections.abc import Callable, Mapping

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.asked.signing import explain_foreign_strategy
from advisor.protocol.measured.messages import Assignment, HelloReport, NextReply, NextRequest, Trouble
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import RacePlan
from agent.client import ServerClient
from agent.errors import AgentError, NotCounted, ServerRefused, ServerUnreachable, StaleSession
from agent.sessions.control import Hello, ScriptEnded
from agent.sessions.delivery import Delivery
from agent.sessions.fitting import fit_report
from agent.sessions.outcome import Cause, Ending
from agent.sessions.plausibility import find_implausible
from agent.sessions.spool import SpooledReport

_INVALID = 422


class Measuring:
    """Answers the runtime in the control socket's threads; the session's guard reads `ending`."""

    def __init__(
        self,
        assignment: Assignment,
        client: ServerClient,
        delivery: Delivery,
        *,
        count_steps: Callable[[], int | None],
        is_given_up: Callable[[], bool],
        signed: JobSpec | None = None,
        counts_from_launch: bool = False,
        clock: Callable[[], float],
    ) -> None:
        """`count_steps` tells the slowest local rank's steps; once `is_given_up`, the server is not asked again.

        `signed`: strategies that this job, as its owner signed it, may not try are refused.
        `counts_from_launch`: a race may hold steps from before it was asked for.
        """
        self._signed = signed
        self._counts_from_launch = counts_from_launch
        self._assignment, self._client, self._delivery = assignment, client, delivery
        self._count_steps, self._is_given_up, self._clock = count_steps, is_given_up, clock
        self._race: RacePlan | None = None
        self._asked_at_s = clock()
        self.ending: Ending | None = None
        """The first thing said that ends the session."""
        self.ended = threading.Event()
        self.total_steps = 0
        """Steps the script made, where it ended by itself."""

    def greet(self, hello: Hello) -> NextReply:
        """Pass the first words on, and ask what comes first."""
        report = HelloReport(
            generation=self._assignment.generation,
            facts=hello.facts,
            baseline=hello.baseline,
            refusals=hello.refusals,
        )
        try:
            self._client.hello(self._assignment.session_id, report, self._is_over)
            return self._ask_next()
        except AgentError as error:
            return self._give_up(error)

    def take_race(self, race_id: str, results: Mapping[str, BlockResult]) -> NextReply:
        """Write the race down, hand it in, and ask what comes next."""
        doubt = find_implausible(race_id, results, self._race, self._clock() - self._asked_at_s)
        if doubt:
            self.take_nonsense(doubt)
            return NextReply(end_because=doubt)
        try:
            body = fit_report(self._assignment.generation, results)
        except ValueError as error:
            self.take_nonsense(str(error))
            return NextReply(end_because=str(error))
        spooled = SpooledReport(session_id=self._assignment.session_id, race_id=race_id, body=body)
        try:
            refusal = self._hand_in(spooled)
            if any(result.script_ended for result in results.values()):
                self.take_ending(ScriptEnded(self._count_steps() or 0))
                return NextReply(end_because="The script ended by itself.")
            reply = self._ask_next()
            if refusal and reply.race is not None and reply.race.race_id == race_id:
                # It would not count a second time either.
                self.take_nonsense(refusal)
                return NextReply(end_because=refusal)
            return reply
        except AgentError as error:
            return self._give_up(error)
        except OSError as error:
            sentence = f"A measurement could not be written down on this node: {error.strerror or error}."
            self._end(Ending(Cause.DISK_FULL, sentence))
            return NextReply(end_because=sentence)

    def take_trouble(self, trouble: Trouble) -> None:
        """Remember that the script cannot be measured: it ends the session.

        What one process says of steps outside of a process group counts only where no rank has joined one.
        """
        if trouble.code == "outside_group" and self._count_steps() is not None:
            return
        self._end(Ending(Cause.TROUBLE, trouble.sentence, trouble))

    def take_ending(self, ending: ScriptEnded) -> None:
        """Remember that the script ended by itself."""
        self.total_steps = ending.steps
        self._end(Ending(Cause.SCRIPT_ENDED, f"The script ended by itself after {ending.steps} steps."))

    def take_nonsense(self, sentence: str) -> None:
        """Remember that runtime and agent do not understand each other: it ends the session."""
        self._end(Ending(Cause.NONSENSE, sentence))

    def _hand_in(self, spooled: SpooledReport) -> str:
        """Return why the report does not count; empty when it does. Whether the session goes on is another question."""
        try:
            self._delivery.deliver(spooled, self._is_over)
        except NotCounted as error:
            return str(error)
        return ""

    def _ask_next(self) -> NextReply:
        request = NextRequest(generation=self._assignment.generation)
        reply = self._client.next_race(self._assignment.session_id, request, self._is_over)
        if reply.race is None:
            self._end(Ending(Cause.INSTRUCTED, reply.end_because))
        elif foreign := self._find_foreign(reply.race):
            self._end(Ending(Cause.TROUBLE, foreign, Trouble(code="not_signed", sentence=foreign)))
            return NextReply(end_because=foreign)
        self._race = reply.race
        if not self._counts_from_launch:
            self._asked_at_s = self._clock()
        return reply

    def _find_foreign(self, race: RacePlan) -> str:
        """Why a race is none that the owner of a signed job agreed to; empty where it is one."""
        if self._signed is None:
            return ""
        return next(
            (why for arm in race.arms if (why := explain_foreign_strategy(self._signed, arm.overrides))), ""
        )

    def _give_up(self, error: AgentError) -> NextReply:
        cause = Cause.TURNED_AWAY
        if isinstance(error, StaleSession):
            cause = Cause.SERVER_ENDED
        elif isinstance(error, ServerUnreachable):
            cause = Cause.FENCED
        elif isinstance(error, ServerRefused) and error.status == _INVALID and error.code:
            # Ours, and about the message itself: what the runtime said makes no sense to the server.
            cause = Cause.NONSENSE
        self._end(Ending(cause, str(error)))
        return NextReply(end_because=str(error))

    def _end(self, ending: Ending) -> None:
        """The first ending counts."""
        if self.ending is None:
            self.ending = ending
            self.ended.set()

    def _is_over(self) -> bool:
        return self.ending is not None or self._is_given_up()
