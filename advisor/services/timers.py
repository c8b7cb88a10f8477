"""How long things may take, and how often leases are renewed."""

from dataclasses import dataclass

_BEATS_A_LEASE = 3
"""Where renewals are rare, a lease outlasts two that fail."""


@dataclass(frozen=True)
class Pace:
    """How leases are renewed, in seconds."""

    beat_s: float
    """Time between two renewals of a member."""
    lease_s: float
    """What a renewal is good for."""

    @property
    def fence_s(self) -> float:
        """Time without a renewal after which an agent kills its ranks, well before anybody else gets its session."""
        return 0.6 * self.lease_s


@dataclass(frozen=True)
class Timers:
    """How long things may take, in seconds."""

    beat_s: float = 2.0
    """How often a session is renewed."""
    most_beats_per_s: float = 125.0
    """Renewals that a server takes a second, half a core's work: where more agents hold sessions, each renews less
    often."""
    lease_s: float = 30.0
    """A beat renews a member's lease for this long."""
    grace_s: float = 5.0
    """A session is lost this long after a lease ran out: agents fence themselves well before."""
    assemble_s: float = 60.0
    """Time for a gang to become complete."""
    ending_s: float = 120.0
    """Time for a gang to report that every rank is gone."""
    overtime_s: float = 120.0
    """Time beyond `session_timeout_s` before the server itself gives a session up: the agents end it first."""
    leave_s: float = 60.0
    """A session is asked to end this long before the allocation of one of its agents ends."""
    silent_s: float = 30.0
    """An agent that asked for no work for this long gets none."""
    think_s: float = 8.0
    """A suggestion that takes longer is replaced by a simpler one: training processes wait for it."""
    restart_s: float = 60.0
    """After a start of the server every live lease lasts this long at least (twice the lease, if that is more)."""

    def pace(self, members: int) -> Pace:
        """Return how leases are renewed while that many agents hold sessions."""
        beat_s = members / self.most_beats_per_s
        if beat_s <= self.beat_s:
            return Pace(self.beat_s, self.lease_s)
        return Pace(beat_s, max(self.lease_s, _BEATS_A_LEASE * beat_s))
