"""What was measured for a job, page by page: its trials, blocks and sessions."""

from advisor.protocol.measured.pages import BlockPage, SessionPage, TrialPage
from advisor.services.jobs import get_job
from advisor.services.pages import cut_page, read_cursor
from advisor.storage import UnitOfWork


def list_trials(work: UnitOfWork, job_id: str, limit: int, cursor: str | None) -> TrialPage:
    """Return a page of a job's trials. Raises JobNotFound, InvalidRequest for a cursor that no page gave."""
    get_job(work, job_id)
    items, next_cursor = cut_page(work.trials.page(job_id, limit + 1, read_cursor(cursor)), limit)
    return TrialPage(items=items, next_cursor=next_cursor)


def list_blocks(work: UnitOfWork, job_id: str, limit: int, cursor: str | None) -> BlockPage:
    """Return a page of a job's blocks. Raises JobNotFound, InvalidRequest for a cursor that no page gave."""
    get_job(work, job_id)
    items, next_cursor = cut_page(work.blocks.page(job_id, limit + 1, read_cursor(cursor)), limit)
    return BlockPage(items=items, next_cursor=next_cursor)


def list_sessions(work: UnitOfWork, job_id: str, limit: int, cursor: str | None) -> SessionPage:
    """Return a page of a job's sessions. Raises JobNotFound, InvalidRequest for a cursor that no page gave."""
    get_job(work, job_id)
    items, next_cursor = cut_page(work.sessions.page(job_id, limit + 1, read_cursor(cursor)), limit)
    return SessionPage(items=items, next_cursor=next_cursor)
