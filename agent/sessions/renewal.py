"""Renews a session's lease with beats, in a thread of its own: no slow answer delays the guard."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import structlog

from advisor.protocol.measured.messages import Beat, BeatReply, MemberState
from advisor.protocol.measured.telemetry import TelemetryBatch
from advisor.protocol.measured.trials import SessionState
from agent.client import ServerClient
from agent.errors import AgentError, NotWelcome, ServerRefused, StaleSession

_MOST_SAMPLES_KEPT = 300
_BEAT_WHILE_ASSEMBLING_S = 0.2
"""Until the gang is complete: its last member starts at once, and the others should not start a whole beat later."""
_MOST_LOG_CHARACTERS = 16 * 1024
_SPREAD = 0.2
"""Share of a pause by which it is longer or shorter: agents that began together do not beat together for ever."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class News:
    """What a beat carries besides the lease."""

    steps: int | None = None
    telemetry: TelemetryBatch = field(default_factory=TelemetryBatch)
    log: str = ""

    def join(self, later: "News") -> "News":
        """Return both in one, bounded: during an outage the oldest samples and lines are dropped."""
        samples = (*self.telemetry.samples, *later.telemetry.samples)[-_MOST_SAMPLES_KEPT:]
        text = (self.log + later.log)[-2 * _MOST_LOG_CHARACTERS :]
        return News(later.steps, TelemetryBatch(samples=samples), text)

    def age(self, seconds: float) -> "News":
        """Return the same, to be sent so many seconds later."""
        samples = (one.model_copy(update={"age_s": one.age_s + seconds}) for one in self.telemetry.samples)
        return replace(self, telemetry=TelemetryBatch(samples=tuple(samples)))


class Renewal:
    """One session's beats. The guard reads `reply`, `is_over` and `silent_for_s`."""

    def __init__(
        self,
        client: ServerClient,
        session_id: str,
        generation: int,
        *,
        beat_s: float,
        fence_s: float,
        collect: Callable[[int], News],
        clock: Callable[[], float],
        rendezvous: str | None,
        uniform: Callable[[float, float], float] = random.uniform,
    ) -> None:
        """`beat_s` and `fence_s` hold until the server names others. `rendezvous` is what we offer.

        `collect` is asked for the news of at most that many characters of log.
        """
        self._client, self._session_id, self._generation = client, session_id, generation
        self._beat_s, self._collect, self._clock, self._rendezvous = beat_s, collect, clock, rendezvous
        self._uniform = uniform
        self._is_acknowledged = True
        """Whether the last beat was."""
        self.fence_s = fence_s
        """Longest time without an acknowledged beat before the ranks have to go."""
        self.state = MemberState.READY
        self.reply: BeatReply | None = None
        self.over_because = ""
        """A sentence once the server said that the session is over."""
        self._acknowledged_at_s = clock()
        self._news = 0
        """Number of those that are on their way."""
        self._on_their_way: News | None = None
        """Sent, and not acknowledged: they may have arrived, so they are sent again under the same number."""
        self._later = News()
        """What came since, to be sent under the next number."""
        self._gathered_at_s = clock()
        self._one_at_a_time = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="renewal", daemon=True)

    def start(self) -> None:
        """Send the first beat, and one every `beat_s` once the gang is complete."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more beats."""
        self._stopping.set()

    @property
    def acknowledged_at_s(self) -> float:
        """When the last acknowledged beat was sent."""
        return self._acknowledged_at_s

    @property
    def silent_for_s(self) -> float:
        """Seconds since the last acknowledged beat was *sent*: the server cannot count later than that."""
        return self._clock() - self._acknowledged_at_s

    @property
    def is_over(self) -> bool:
        """Whether the server said that this session is over for this agent."""
        return bool(self.over_because)

    def beat_now(self) -> None:
        """Send a beat and wait for its answer; after an outage a second one, with what came meanwhile."""
        with self._one_at_a_time:
            if not self.is_over:
                was_cut_off = self._on_their_way is not None
                self._beat()
                if was_cut_off and self._is_acknowledged and not self.is_over:
                    self._beat()

    def _run(self) -> None:
        while not self.is_over:
            self.beat_now()
            if self._stopping.wait(self.pause_s()):
                return

    def pause_s(self) -> float:
        """Return how long to wait before the next beat."""
        if self.reply is None or not self._is_acknowledged:
            return self._beat_s
        if self.reply.rendezvous is None:
            return min(self._beat_s, _BEAT_WHILE_ASSEMBLING_S)
        return (self.reply.beat_s or self._beat_s) * self._uniform(1 - _SPREAD, 1 + _SPREAD)

    def _beat(self) -> None:
        self._is_acknowledged = False
        news = self._gather()
        sent_at_s = self._clock()
        message = Beat(
            generation=self._generation,
            state=self.state,
            rendezvous=self._rendezvous,
            steps=news.steps,
            news=self._news,
            telemetry=news.telemetry,
            log=news.log,
        )
        try:
            reply = self._client.beat(self._session_id, message, timeout_s=max(2.0, 2 * self._beat_s))
        except StaleSession as error:
            self.over_because = f"The session was given up by the server: {error}"
            return
        except NotWelcome as error:
            self.over_because = f"The server no longer accepts this agent: {error}"
            return
        except ServerRefused as error:
            # Not the lease but this very message was refused; without its extras the next one may pass.
            log.error("The server refused a beat.", error=str(error), session=self._session_id)
            self._on_their_way = None
            return
        except AgentError as error:
            log.warning("A beat was not acknowledged.", error=str(error), session=self._session_id)
            return
        self._on_their_way = None
        self._acknowledged_at_s, self._is_acknowledged = sent_at_s, True
        self.reply = reply
        self.fence_s = reply.fence_s or self.fence_s
        if reply.state is SessionState.ENDING or reply.state.is_final:
            self.over_because = "The server ended the session."

    def _gather(self) -> News:
        """Return what the next beat brings: what was not acknowledged once more, else all that came since."""
        fresh, now_s = self._collect(_MOST_LOG_CHARACTERS), self._clock()
        waited_s, self._gathered_at_s = now_s - self._gathered_at_s, now_s
        self._later = self._later.age(waited_s).join(fresh)
        if self._on_their_way is None:
            self._news, self._on_their_way, self._later = self._news + 1, self._later, News()
        else:
            self._on_their_way = replace(self._on_their_way.age(waited_s), steps=fresh.steps)
        return self._on_their_way
