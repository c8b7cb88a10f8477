"""The connection to SQLite or PostgreSQL, its transactions, and its migrations.

SQLite runs in WAL mode with synchronous=FULL, so that an answered request survives a power cut, and with one
writer at a time, whose transactions are committed in groups (`GroupCommit`). (SQLite before 3.51.3 can corrupt a WAL
that two connections checkpoint at once; with one writer that cannot happen.)
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    create_engine,
    insert,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import (
    DatabaseError,
    DataError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
)

from advisor.errors import DiskFull, InvalidRequest, LostRace, Unavailable
from advisor.protocol.asked.webhooks import Notice
from advisor.storage.bell import Bell, SharedBell
from advisor.storage.connections import is_disk_full, tune_postgresql, tune_sqlite
from advisor.storage.fault_points import FaultPoint, Side, Strike, pass_by
from advisor.storage.repositories.known_blocks import KnownBlocks
from advisor.storage.revisions import refuse_unknown
from advisor.storage.sqlite.database_file import DatabaseFile, DatabaseRefused
from advisor.storage.sqlite.group_commit import GroupCommit
from advisor.storage.sqlite.write_queue import QueuedWrite, WriteQueue
from advisor.storage.tables import VERSION_TABLE, Base
from advisor.storage.work import UnitOfWork

Result = TypeVar("Result")

VERSIONS = Path(__file__).parent / "migrations" / "versions"
_CROWD = 8
"""Tasks: a few always wait for the disk."""
_FULL_FOR_S = 10.0
"""So long after a write has found the disk full the database is not ready."""
_MIGRATION_LOCK = 0x666C_6565_74
_versions = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
"""Alembic's own table, as it makes it."""


class Database:
    """One database; share it between threads, and close it at the end."""

    def __init__(
        self,
        url: str,
        new_id: Callable[[], str],
        note: Callable[[str, float, bool], None] = lambda *_: None,
        strike: Strike = pass_by,
        *,
        only_read: bool = False,
    ) -> None:
        """Prepare to connect to `url`; nothing is opened before the first transaction.

        `new_id` makes the random part of ids: short, unique, lower-case. `note` is told of every transaction: `read`
        or `write`, how many seconds it took, and whether it failed because the database could not serve. `strike` is
        there for tests. `only_read`: nothing is written to a SQLite file, which another process may have open.
        """
        self._note, self._strike = note, strike
        self._new_id = new_id
        self._known_blocks = KnownBlocks()
        self._full_at_s = -math.inf
        parsed = make_url(url)
        if parsed.get_backend_name() == "postgresql" and "+" not in parsed.drivername:
            parsed = parsed.set(drivername="postgresql+psycopg")
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        has_file = self.is_sqlite and parsed.database not in {None, "", ":memory:"}
        self.file = DatabaseFile(Path(parsed.database or "")) if has_file else None
        """The file, of SQLite."""
        if only_read and self.file is not None:
            name = f"file:{quote(str(self.file.path))}"
            parsed = parsed.set(database=name, query={"mode": "ro", "uri": "true"})
        self._engine = create_engine(
            parsed,
            pool_size=20,
            max_overflow=40,
            pool_pre_ping=not self.is_sqlite,
            # What was used last knows most of what is asked next.
            pool_use_lifo=True,
            # A failed statement is logged, and its parameters hold what jobs keep secret.
            hide_parameters=True,
        )
        self.tokens_stamp: object | None = object() if self.is_sqlite else None
        """Another one after every transaction that changed tokens; None where other servers change them too."""
        self._writer = GroupCommit(self._engine) if self.is_sqlite else None
        """The one that writes to SQLite."""
        self._queue = WriteQueue(self._writer, self._run, self._settle) if self._writer else None
        self.bell = Bell() if self.is_sqlite else SharedBell(self._engine)
        """Wakes those who wait for what is written."""
        self.send: Callable[[Notice], None] = lambda _: None
        """Is given what webhooks are to be told, once that is committed."""
        if self.is_sqlite:
            tune_sqlite(self._engine)
        else:
            tune_postgresql(self._engine)

    @contextmanager
    def begin(self) -> Iterator[UnitOfWork]:
        """Run one writing transaction: committed at the end, rolled back when an exception leaves it.

        Raises LostRace when a unique index refused a write, Unavailable when the database cannot serve.
        """
        with self._noted("write"):
            with self._transaction(read_only=False) as work:
                yield work
                self._pass(work, Side.BEFORE)
            if work.tokens.have_changed and self.is_sqlite:
                self.tokens_stamp = object()
            self._pass(work, Side.AFTER)

    async def write(self, write: Callable[[UnitOfWork], Result]) -> Result:
        """Run one writing transaction on SQLite for a task of the event loop; raises what `begin` would raise."""
        assert self._queue is not None, "PostgreSQL has many writers, each in its thread"
        return await self._queue.add(write)

    @property
    def is_crowded(self) -> bool:
        """Whether so many tasks wait to write that nothing should be begun which can wait as well."""
        return self._queue is not None and self._queue.length >= _CROWD

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        """Run one transaction that only reads: it waits for no writer."""
        with self._noted("read"), self._transaction(read_only=True) as work:
            yield work

    def hold(self) -> None:
        """Be the only server on a SQLite file until `close`; several servers may share a PostgreSQL.

        Raises DatabaseRefused when another server has the file, or a newer release has written the database.
        """
        if self.file is not None:
            self.file.hold()
            _make_private(self.file.path)
            self.file.hold_itself()
        self._read_revision()

    def prove_current(self) -> None:
        """Raise DatabaseRefused unless the tables have this release's form."""
        if self.file is not None:
            self.file.prove_there()
        if (revision := self._read_revision()) != find_newest_revision():
            raise DatabaseRefused(
                f"The database is {f'of revision {revision}' if revision else 'empty'}, and this release works with "
                f"{find_newest_revision()}.",
                "Start the server once: it brings the database up to date, and keeps a copy from before.",
            )

    def migrate(self) -> None:
        """Bring the tables to this release's form; safe to call from several servers at once on PostgreSQL.

        A SQLite file is copied before it is changed. Raises DatabaseRefused for a database of a newer release.
        """
        if self._read_revision() not in {None, find_newest_revision()} and self.file is not None:
            self.file.copy_before(find_newest_revision())
        if self.file is not None:
            _make_private(self.file.path)
        turn = self._writer.turn if self._writer else nullcontext()
        with turn, self._engine.connect() as connection, connection.begin():
            if not self.is_sqlite:
                # A large library is loaded within: that may take a while on a busy machine.
                connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            tables = inspect(connection).get_table_names()
            if self.is_sqlite and not tables:
                _make_tables(connection)
                self._strike(FaultPoint.MIGRATED, Side.BEFORE)
            elif VERSION_TABLE not in tables or _read_versions(connection) != [find_newest_revision()]:
                upgrade(connection, on_step=lambda: self._strike(FaultPoint.MIGRATED, Side.BEFORE))
            else:
                return
        self._strike(FaultPoint.MIGRATED, Side.AFTER)

    def prove_ready(self) -> None:
        """Raise Unavailable unless the database answers, and DiskFull where a write has just found its disk full.

        That is forgotten after a while: a server that is asked nothing because of it would never learn that it is over.
        """
        if time.monotonic() < self._full_at_s + _FULL_FOR_S:
            raise DiskFull
        with self.read() as work:
            work.ping()

    def close(self) -> None:
        """Close every connection, and let another server have the file."""
        if self._queue is not None:
            self._queue.close()
        if self._writer is not None:
            self._writer.close()
        self.bell.stop()
        self._engine.dispose()
        if self.file is not None:
            self.file.release()

    def _read_revision(self) -> str | None:
        """The migration that the database has seen last; None for an empty one. Raises DatabaseRefused."""
        try:
            with self._engine.connect() as connection:
                if VERSION_TABLE not in inspect(connection).get_table_names():
                    return None
                revision = next(iter(_read_versions(connection)), None)
        except DBAPIError as error:
            if _is_damage(error):
                where = "The database" if self.file is None else self.file.path
                raise DatabaseRefused(
                    f"{where} is damaged, or no database: {error.orig}.",
                    "Keep a copy of it and go back to a backup: advisor admin restore FILE.",
                ) from error
            if (told := _tell(error)) is error:
                raise
            raise told from error
        if revision is not None:
            place = "of ADVISOR_DATABASE_URL" if self.file is None else str(self.file.path)
            refuse_unknown(revision, _list_revisions(), place)
        return revision

    def _pass(self, work: UnitOfWork, side: Side) -> None:
        for point in work.reached:
            self._strike(point, side)

    @contextmanager
    def _noted(self, kind: str, since_s: float | None = None) -> Iterator[None]:
        began_s, is_outage = time.perf_counter() if since_s is None else since_s, False
        try:
            yield
        except Unavailable as error:
            is_outage = not isinstance(error, LostRace)
            if isinstance(error, DiskFull):
                self._full_at_s = time.monotonic()
            raise
        finally:
            self._note(kind, time.perf_counter() - began_s, is_outage)

    @contextmanager
    def _connected(self, read_only: bool) -> Iterator[Connection]:
        if self._writer is not None and not read_only:
            with self._writer.begin() as connection:
                yield connection
            return
        with self._engine.connect() as connection:
            connection = connection.execution_options(advisor_read_only=read_only)
            with connection.begin():
                yield connection

    @contextmanager
    def _transaction(self, read_only: bool) -> Iterator[UnitOfWork]:
        try:
            with self._connected(read_only) as connection:
                work = self._unit(connection, read_only)
                yield work
        except (DBAPIError, OverflowError) as error:
            if (told := _tell(error)) is error:
                raise
            raise told from error
        self._pass_on([work])

    def _pass_on(self, committed: Sequence[UnitOfWork]) -> None:
        """Wake and tell others of what transactions have done."""
        for topic in {topic for work in committed for topic in work.rung}:
            self.bell.ring(topic)
        for notice in [notice for work in committed for notice in work.notices]:
            self.send(notice)

    def _unit(self, connection: Connection, read_only: bool) -> UnitOfWork:
        return UnitOfWork(connection, self._new_id, self._known_blocks, read_only)

    def _run(self, one: QueuedWrite, connection: Connection) -> None:
        work = self._unit(connection, read_only=False)
        one.run(work)
        self._pass(work, Side.BEFORE)

    def _settle(self, taken: list[QueuedWrite], errors: list[BaseException | None]) -> None:
        """Answer those who wait for queued transactions, once these are committed."""
        done = [one.work for one, error in zip(taken, errors, strict=True) if one.work and not error]
        self._pass_on(done)
        for one, error in zip(taken, errors, strict=True):
            refusal = self._conclude(one, error)
            if one.future.done():
                # Who asked has gone.
                continue
            if refusal is None:
                one.future.set_result(one.result)
            else:
                one.future.set_exception(refusal)

    def _conclude(self, one: QueuedWrite, error: BaseException | None) -> BaseException | None:
        """Do what follows the commit of one; return what its asker is told instead of its result."""
        try:
            with self._noted("write", one.since_s):
                if error is not None:
                    if (told := _tell(error)) is error:
                        raise error
                    raise told from error
                if one.work is not None and one.work.tokens.have_changed:
                    self.tokens_stamp = object()
                if one.work is not None:
                    self._pass(one.work, Side.AFTER)
        except Exception as refusal:
            return refusal
        return None


def _tell(error: BaseException) -> BaseException:
    """Return a driver's error in the words of the application; another one as it is."""
    if isinstance(error, IntegrityError):
        return LostRace("Something else changed the same thing at the same moment.")
    if isinstance(error, DataError | OverflowError):
        return InvalidRequest("A number in the request is too large to be stored.")
    if isinstance(error, InternalError) and not error.connection_invalidated:
        return error
    if isinstance(error, DBAPIError) and is_disk_full(error):
        return DiskFull()
    if isinstance(error, OperationalError | InterfaceError | InternalError):
        return Unavailable("The database cannot be reached or is busy.")
    if _is_damage(error):
        return Unavailable("The database is damaged: `advisor admin check` says where.")
    return error


def _is_damage(error: BaseException) -> bool:
    """Whether SQLite found that its file is damaged, or none of its own: it has no narrower kind of error for that."""
    return type(error) is DatabaseError


def _make_private(file: Path) -> None:
    """Let only the owner read the database: it holds what jobs keep secret. SQLite's other files take over its mode."""
    # Where the file cannot be made or is somebody else's, SQLite says so when it is opened. One that is there is never
    # opened here: closing it would drop the locks of every connection of this process (fcntl's), and whoever else
    # closes the file next would delete the log that this process goes on writing.
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    for path in (file, file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")):
        with suppress(OSError):
            path.chmod(0o600)


def find_newest_revision() -> str:
    """Return the newest migration, which this release's tables have: its number begins its file's name."""
    return max(_list_revisions())


def _list_revisions() -> list[str]:
    return [path.name.partition("_")[0] for path in VERSIONS.glob("[0-9]*.py")]


def upgrade(connection: Connection, on_step: Callable[[], None] = lambda: None) -> None:
    """Run the migrations that the database has not seen yet; `on_step` is called after each."""
    # A large library, and most starts find nothing to do.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(VERSIONS.parent))
    config.attributes["connection"] = connection
    config.attributes["on_step"] = on_step
    command.upgrade(config, "head")


def _make_tables(connection: Connection) -> None:
    """Make all tables at once: the same as every migration one after the other, in a tenth of the time."""
    Base.metadata.create_all(connection)
    _versions.create(connection)
    connection.execute(insert(_versions).values(version_num=find_newest_revision()))


def _read_versions(connection: Connection) -> list[str]:
    return list(connection.execute(select(_versions.c.version_num)).scalars())
