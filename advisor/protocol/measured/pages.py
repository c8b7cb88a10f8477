"""Pages of what was measured for a job."""

from advisor.protocol.base import Message
from advisor.protocol.measured.trials import Block, Session, Trial


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
