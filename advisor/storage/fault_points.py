"""Named moments at which a server may fail or die: tests strike there. A server that serves passes them by."""

from collections.abc import Callable
from enum import StrEnum


class FaultPoint(StrEnum):
    """What a writing transaction is about: it may be struck before its commit, or after it with its answer lost."""

    TOKEN_MADE = "token made"  # noqa: S105
    """The first tokens are also in files by then."""
    AGENT_REGISTERED = "agent registered"
    AGENTS_SEEN = "agents seen"
    JOB_SUBMITTED = "job submitted"
    JOB_PAUSED = "job paused"
    JOB_RESUMED = "job resumed"
    JOB_PRIORITISED = "job prioritised"
    JOB_CANCELLED = "job cancelled"
    TRIAL_REPEATED = "trial repeated"
    JOB_CONTINUED = "job continued"
    JOB_ARCHIVED = "job archived"
    JOB_DELETED = "job deleted"
    JOB_ENDED = "job ended"
    """The planner has finished it, or given it up."""
    EARLIER_CHOSEN = "earlier jobs chosen"
    LEASE_GIVEN = "lease given"
    LEASE_RENEWED = "lease renewed"
    SESSION_STARTED = "session started"
    SCRIPT_SEEN = "script seen"
    RACE_ISSUED = "race issued"
    """What the planner thought of is stored with it."""
    RESULT_ACCEPTED = "result accepted"
    RESULT_QUARANTINED = "result quarantined"
    TROUBLE_NOTED = "trouble noted"
    SESSION_ENDING = "session ending"
    SESSION_ENDED = "session ended"
    SESSION_LOST = "session lost"
    """It was posted before."""
    RUN_REPORTED = "run reported"
    MIGRATED = "migrated"
    """Before the commit: once after every step."""


class Side(StrEnum):
    """On which side of the commit."""

    BEFORE = "before"
    AFTER = "after"


Strike = Callable[[FaultPoint, Side], None]
"""Called at every fault point; what it raises goes on as an error of the database would."""


def pass_by(point: FaultPoint, side: Side) -> None:
    """Do nothing: what a server that serves does."""
