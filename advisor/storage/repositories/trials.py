"""Trials: numbered per job, closed once."""

from datetime import datetime

from sqlalchemy import Connection, bindparam, insert, select, update

from advisor.protocol.kinds import Effect
from advisor.protocol.measured.trials import Outcome, Purpose, Trial, TrialState
from advisor.storage.columns import AnyRow
from advisor.storage.page_sizes import Part, count_fitting
from advisor.storage.tables import BlockRow, TrialRow


class Trials:
    """The trials of one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, job_id: str, trial: Trial) -> None:
        """Store a new trial; its number must be free."""
        values = {name: getattr(trial, name) for name in Trial.model_fields}
        self._connection.execute(_ADD, values | {"job_id": job_id})

    def of_race(self, session_id: str, race: int) -> dict[int, Trial]:
        """Return the trials of a race by number."""
        rows = self._connection.execute(_OF_RACE, {"session": session_id, "race": race})
        return {row.number: _trial(row) for row in rows}

    def of_job(self, job_id: str) -> tuple[Trial, ...]:
        """Return all trials of a job by number."""
        return tuple(_trial(row) for row in self._connection.execute(_OF_JOB, {"job": job_id}))

    def page(self, job_id: str, limit: int, after: int | None) -> Part[tuple[int, Trial]]:
        """Return trials of a job with their numbers, by number, those above `after`."""
        query = select(TrialRow).where(TrialRow.job_id == job_id).order_by(TrialRow.number)
        if after is not None:
            query = query.where(TrialRow.number > after)
        most = count_fitting(self._connection, query, limit, TrialRow)
        rows = self._connection.execute(query.limit(most + 1))
        return Part([(row.number, _trial(row)) for row in rows], most)

    def close(
        self,
        job_id: str,
        number: int,
        outcome: Outcome,
        reason: str,
        now: datetime,
        log_tail: str = "",
        ran: Trial | None = None,
    ) -> None:
        """Close a trial; the job's course says whether this ending stands (`may_close`), and what of it ran."""
        query = update(TrialRow).where(TrialRow.job_id == job_id, TrialRow.number == number)
        if ran is not None:
            query = query.values(changes=ran.changes, effect=ran.effect)
        closed = {
            "state": TrialState.CLOSED,
            "outcome": outcome,
            "outcome_reason": reason,
            "log_tail": log_tail,
            "finished_at": now,
        }
        self._connection.execute(query.values(closed))

    def ask_again(self, job_id: str, number: int, now: datetime) -> None:
        """Note that a user wants another race of a trial."""
        query = update(TrialRow).where(TrialRow.job_id == job_id, TrialRow.number == number)
        self._connection.execute(query.values(asked_again_at=now))

    def close_all(self, job_id: str, outcome: Outcome, reason: str, now: datetime) -> None:
        """Close every open trial of a job, readable or not."""
        query = update(TrialRow).where(TrialRow.job_id == job_id, TrialRow.state == TrialState.OPEN)
        closed = {
            "state": TrialState.CLOSED,
            "outcome": outcome,
            "outcome_reason": reason,
            "finished_at": now,
        }
        self._connection.execute(query.values(closed))


_ADD = insert(TrialRow)
_OF_JOB = select(TrialRow).where(TrialRow.job_id == bindparam("job")).order_by(TrialRow.number)
_OF_RACE = (
    select(TrialRow)
    .join(BlockRow, (BlockRow.job_id == TrialRow.job_id) & (BlockRow.trial_number == TrialRow.number))
    .where(BlockRow.session_id == bindparam("session"), BlockRow.race == bindparam("race"))
)


def _trial(row: AnyRow) -> Trial:
    return Trial.model_construct(
        **{name: getattr(row, name) for name in Trial.model_fields}
        | {
            "purpose": Purpose(row.purpose),
            "effect": Effect(row.effect),
            "state": TrialState(row.state),
            "outcome": Outcome(row.outcome) if row.outcome else None,
        }
    )
