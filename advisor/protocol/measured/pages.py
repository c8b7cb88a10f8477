"""Pages of what was measured for a job."""

from advisor.protocol.base import Message
from advisor.protocol.measured.trials import Block, JobHistory, Session, Trial


class TrialPage(Message):
    """Trials of a job, by number."""

    items: tuple[Trial, ...]
    next_cursor: str | None = None
    """What to pass as `cursor` to get the next page; None on the last one."""


class BlockPage(Message):
    """Blocks of a job, session by session, each in the order they were issued."""

    items: tuple[Block, ...]
    next_cursor: str | None = None
    """What to pass as `cursor` to get the next page; None on the last one."""


class SessionPage(Message):
    """Sessions of a job, oldest first."""

    items: tuple[Session, ...]
    next_cursor: str | None = None
    """What to pass as `cursor` to get the next page; None on the last one."""


class HistoryPage(JobHistory):
    """A part of what was measured for a job: trials, blocks and sessions, each after those of the page before."""

    next_cursor: str | None = None
    """What to pass as `cursor` to get the next part; None on the last one."""
