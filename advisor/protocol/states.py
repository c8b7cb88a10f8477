"""Where a job stands and what came of it, by themselves: a list of jobs needs no model of all that a job may hold."""

from enum import StrEnum


class JobState(StrEnum):
    """The state of a job; the last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    """Gets no new session; one that it still holds ends behind the race that it is measuring."""
    CANCELLING = "cancelling"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether nothing more will happen."""
        return self in {JobState.FINISHED, JobState.FAILED, JobState.CANCELLED}

    @property
    def predicate(self) -> str:
        """Behind a job's name in a sentence: `has failed`, `was cancelled`, `is running`."""
        told = {
            JobState.CANCELLING: "is being cancelled",
            JobState.FINISHED: "has finished",
            JobState.FAILED: "has failed",
            JobState.CANCELLED: "was cancelled",
        }
        return told.get(self, f"is {self.value}")


class Stage(StrEnum):
    """What a running job is doing."""

    PROBE = "probe"
    SEARCH = "search"
    TRIM = "trim"
    """The trimming: knobs of the winner that are shown not to help go back to the baseline."""
    CONFIRM = "confirm"
    DONE = "done"


class Verdict(StrEnum):
    """What the advice comes down to."""

    CHANGE = "change"
    """The whole interval lies above no gain, and the gain is worth a change: use the strategy."""
    KEEP = "keep"
    """The interval excludes a gain worth a change, or no knob can matter: keep your settings."""
    UNDECIDED = "undecided"
    """Neither is shown. Nothing measured is lost: the job can be continued."""


STAGE_WORDS = {
    Stage.PROBE: "measuring your settings",
    Stage.SEARCH: "searching",
    Stage.TRIM: "taking back what does not help",
    Stage.CONFIRM: "confirming",
    Stage.DONE: "writing the advice",
}
"""What a running job does, for people."""
