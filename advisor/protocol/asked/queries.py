"""What a list of jobs is asked for: which jobs, how many, and from where on."""

from pydantic import Field

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.base import Moment, Spec


class JobQuery(Spec):
    """The jobs that every given field fits; without any, all that are not archived."""

    state: tuple[JobState, ...] = ()
    """Only jobs in one of these states; repeat it for several."""
    owner: str | None = Field(default=None, max_length=200)
    """Only jobs of this owner."""
    name: str | None = Field(default=None, max_length=200)
    """Only jobs of this name; with a `*` at its end, of every name that begins so."""
    id: str | None = Field(default=None, max_length=200)
    """Only the job with this id; with a `*` at its end, every one whose id begins so."""
    label: tuple[str, ...] = Field(default=(), max_length=32)
    """Only jobs with this label: `KEY=VALUE`, or `KEY` for any value. Of several, a job needs all."""
    created_since: Moment | None = None
    """Only jobs submitted then or later; with a time zone."""
    created_until: Moment | None = None
    """Only jobs submitted before then; with a time zone."""
    archived: bool = False
    """Archived jobs as well."""
    limit: int = Field(default=50, ge=1, le=1000)
    """Most jobs on a page."""
    cursor: str | None = Field(default=None, max_length=100)
    """`next_cursor` of the page before."""
