"""What was measured for a job, page by page: its trials, blocks and sessions, and all of them together."""

from advisor.protocol.measured.trials import BlockPage, HistoryPage, SessionPage, TrialPage
from advisor.services.jobs import get_job
from advisor.services.pages import cut_page, cut_side_by_side, read_cursor, read_cursors
from advisor.storage import UnitOfWork


def list_history(work: UnitOfWork, job_id: str, limit: int, cursor: str | None) -> HistoryPage:
    """Return a page of all that was measured. Raises JobNotFound, InvalidRequest for a cursor that no page gave."""
    get_job(work, job_id)
    places = read_cursors(cursor, 3)
    trials = work.trials.page(job_id, limit, places[0])
    blocks = work.blocks.page(job_id, limit, places[1])
    sessions = work.sessions.page(job_id, limit, places[2])
    return HistoryPage(
        trials=tuple(trial for _, trial in trials),
        blocks=tuple(block for _, block in blocks),
        sessions=tuple(session for _, session in sessions),
        earlier=() if cursor else work.jobs.earlier(job_id) or (),
        next_cursor=cut_side_by_side((trials, blocks, sessions), cursor),
    )


def list_trials(work: UnitOfWork, job_id: str, limit: int, cursor: str | None) -> TrialPage:
    """Return a page of a job's trials. Raises JobNotFound, InvalidRequest for a cursor that no page gave."""
    get_job(work, job_id)
    items, next_cursor = cut_page(work.trials.page(job_id, limit, read_cursor(cursor)))
    return TrialPage(items=items, next_cursor=next_cursor)


def list_blocks(work: UnitOfWork, job_id: str, limit: int, cursor: str | None) -> BlockPage:
    """Return a page of a job's blocks. Raises JobNotFound, InvalidRequest for a cursor that no page gave."""
    get_job(work, job_id)
    items, next_cursor = cut_page(work.blocks.page(job_id, limit, read_cursor(cursor)))
    return BlockPage(items=items, next_cursor=next_cursor)


def list_sessions(work: UnitOfWork, job_id: str, limit: int, cursor: str | None) -> SessionPage:
    """Return a page of a job's sessions. Raises JobNotFound, InvalidRequest for a cursor that no page gave."""
    get_job(work, job_id)
    items, next_cursor = cut_page(work.sessions.page(job_id, limit, read_cursor(cursor)))
    return SessionPage(items=items, next_cursor=next_cursor)
