"""The connection to SQLite or PostgreSQL, its transactions, and its migrations.

SQLite runs in WAL mode with synchronous=FULL, so that an answered request survives a power cut, and with one
writer at a time. (SQLite before 3.51.3 can corrupt a WAL that two connections checkpoint at once; with one writer that
cannot happen.)
"""

import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
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
    update,
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

from advisor import __version__
from advisor.errors import DiskFull, InvalidRequest, LostRace, Unavailable
from advisor.storage.connections import is_disk_full, start_transaction, tune_postgresql, tune_sqlite
from advisor.storage.fault_points import FaultPoint, Side, Strike, pass_by
from advisor.storage.notifier import Notifier
from advisor.storage.repositories.known_blocks import KnownBlocks
from advisor.storage.server_lock import ServerLock
from advisor.storage.sqlite.database_file import DatabaseFile, DatabaseRefused
from advisor.storage.tables import VERSION_TABLE, Base, JobRow
from advisor.storage.work import UnitOfWork

VERSIONS = Path(__file__).parent / "migrations" / "versions"
_FULL_FOR_S = 10.0
"""So long after a write has found the disk full the database is not ready."""
_MIGRATION_LOCK = 0x666C_6565_74
_FORMERLY = "0022"
"""What the first tables were called before the first release: such a database has the tables of 0001."""
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
        self._server_lock = None if self.is_sqlite else ServerLock(self._engine)
        self.tokens_stamp = object()
        """Another one after every transaction that changed tokens."""
        self._turn: AbstractContextManager[object] = threading.Lock() if self.is_sqlite else nullcontext()
        """Held by the thread that writes to SQLite: the next one is woken at once, where SQLite itself would sleep."""
        self.refused: DatabaseRefused | None = None
        """Set where another server has followed this one, which has to stop."""
        self.notifier = Notifier()
        """Wakes those who wait for what is written."""
        self.forget: Callable[[Collection[str]], None] = lambda _: None
        """Is given the sessions whose members may not go on as they did, once that is committed."""
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
            if work.tokens.have_changed:
                self.tokens_stamp = object()
            self._pass(work, Side.AFTER)

    @contextmanager
    def read(self) -> Iterator[UnitOfWork]:
        """Run one transaction that only reads: it waits for no writer."""
        with self._noted("read"), self._transaction(read_only=True) as work:
            yield work

    def hold(self) -> None:
        """Be the only server on the database until `close`.

        Raises DatabaseRefused when another server has it, or a newer release has written it.
        """
        if self.file is not None:
            self.file.hold()
            self.file.tell_empty()
            _make_private(self.file.path)
            self.file.hold_itself()
        self._read_revision()
        if self._server_lock is not None:
            self._server_lock.take()

    def begin_serving(self, silent_s: float) -> None:
        """Bring the tables to this release's form, and let no earlier server write any more. The database is held.

        `silent_s`: PostgreSQL lets another server follow when it has heard nothing from this one for so long.
        """
        with _telling():
            self.migrate()
            if self._server_lock is not None:
                self._server_lock.begin(silent_s)

    def keep_hold(self) -> bool:
        """Say to PostgreSQL that this server is still there; return whether it may go on. `refused` says why not."""
        try:
            if self._server_lock is not None:
                self._server_lock.keep()
        except DatabaseRefused as error:
            self.refused = error
        return self.refused is None

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
        with self._turn, self._engine.connect() as connection, connection.begin():
            start_transaction(connection)
            if not self.is_sqlite:
                # A large library is loaded within: that may take a while on a busy machine.
                connection.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
            tables = inspect(connection).get_table_names()
            is_taken_over = VERSION_TABLE in tables and _take_over(connection)
            if self.is_sqlite and not tables:
                _make_tables(connection)
                self._strike(FaultPoint.MIGRATED, Side.BEFORE)
            elif VERSION_TABLE not in tables or _read_versions(connection) != [find_newest_revision()]:
                upgrade(connection, on_step=lambda: self._strike(FaultPoint.MIGRATED, Side.BEFORE))
            elif not is_taken_over:
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
        if self._server_lock is not None:
            self._server_lock.leave()
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
        except (DBAPIError, UnicodeDecodeError) as error:
            if _is_damage(error):
                where = "The database" if self.file is None else self.file.path
                raise DatabaseRefused(
                    f"{where} is damaged, or no database: {getattr(error, 'orig', error)}.",
                    "Keep a copy of it and go back to a backup: advisor admin restore FILE.",
                ) from error
            if (told := _tell(error)) is error:
                raise
            raise told from error
        if revision not in {None, _FORMERLY, *(known := _list_revisions())}:
            place = "of ADVISOR_DATABASE_URL" if self.file is None else str(self.file.path)
            raise DatabaseRefused(
                f"Another version has written the database {place}: it is of revision {revision}, and this version "
                f"({__version__}) knows those up to {max(known)}.",
                "Install the version that has served it, or a newer one; or go back to a copy from before it "
                "(`advisor admin restore`); or move it away, and the server begins with a new one.",
            )
        return revision

    def _pass(self, work: UnitOfWork, side: Side) -> None:
        for point in work.reached:
            self._strike(point, side)

    @contextmanager
    def _noted(self, kind: str) -> Iterator[None]:
        began_s, is_outage = time.perf_counter(), False
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
        turn = nullcontext() if read_only else self._turn
        with turn, self._engine.connect() as connection, connection.begin():
            start_transaction(connection, read_only=read_only)
            if self._server_lock is not None and not read_only:
                self._server_lock.prove(connection)
            yield connection

    @contextmanager
    def _transaction(self, read_only: bool) -> Iterator[UnitOfWork]:
        with _telling(), self._connected(read_only) as connection:
            work = UnitOfWork(connection, self._new_id, self._known_blocks, read_only)
            yield work
        if work.left:
            self.forget(work.left)
        for topic in work.rung:
            self.notifier.ring(topic)


@contextmanager
def _telling() -> Iterator[None]:
    """Raise a driver's error in the words of the application."""
    try:
        yield
    except (DBAPIError, OverflowError) as error:
        if (told := _tell(error)) is error:
            raise
        raise told from error


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
    if _is_damage(error):
        return Unavailable("The database is damaged: `advisor admin check` says where.")
    if isinstance(error, OperationalError | InterfaceError | InternalError):
        return Unavailable("The database cannot be reached or is busy.")
    return error


def _is_damage(error: BaseException) -> bool:
    """Whether SQLite found that its file is damaged, or none of its own: it has no narrower kind of error for that.

    Names that are no text are found by its driver.
    """
    is_no_text = isinstance(error, UnicodeDecodeError) or "Could not decode to UTF-8" in str(error)
    return type(error) is DatabaseError or is_no_text


def _make_private(file: Path) -> None:
    """Let only the owner read the database: it holds what jobs keep secret. SQLite's other files take over its mode."""
    # Where the file cannot be made or is another user's, SQLite says so when it is opened. One that is there is never
    # opened here: closing it would drop the locks of every connection of this process (fcntl's), and the next process
    # that closes the file would delete the log that this process goes on writing.
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


def _take_over(connection: Connection) -> bool:
    """Give a database of `_FORMERLY` today's words; return whether it is one."""
    if _read_versions(connection) != [_FORMERLY]:
        return False
    connection.execute(update(_versions).values(version_num="0001"))
    connection.execute(update(JobRow).where(JobRow.stage == "simplify").values(stage="trim"))
    return True


def _read_versions(connection: Connection) -> list[str]:
    return list(connection.execute(select(_versions.c.version_num)).scalars())
