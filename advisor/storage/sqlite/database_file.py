"""The file of a SQLite database: one server on it at a time, and copies of it."""

import fcntl
import logging
import os
import re
import sqlite3
from contextlib import suppress
from pathlib import Path

from advisor.storage.tables import VERSION_TABLE

_log = logging.getLogger(__name__)
_COPIES = 3
"""Copies from before migrations that are kept, the latest ones."""


class DatabaseRefused(Exception):
    """A database that this server must not touch. `what` is the matter, `hint`: what to do."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.what, self.hint = what, hint


class DatabaseFile:
    """A SQLite file, by its real path and by the file itself: two names of one file are one file."""

    def __init__(self, path: Path) -> None:
        self.path = path.resolve()
        self._locks: list[int] = []

    def hold(self) -> None:
        """Be the only server on this file until `release`; the locks end with the process, however it ends.

        The lock beside the file counts also while there is no file yet, or another one takes its place; the lock on the
        file itself counts under every name that it has: a hard link, a bind mount. Raises DatabaseRefused when another
        server has either.
        """
        if self._locks:
            return
        path = self.path.with_name(f"{self.path.name}.lock")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
        except OSError as error:
            raise DatabaseRefused(
                f"{path} cannot be written: {error.strerror}.",
                "Give the server a directory that its user may write in.",
            ) from error
        self._lock(lock)
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)

    def hold_itself(self) -> None:
        """Lock the file, which exists, under all its names; called before this process has connections to it.

        flock's locks and those of SQLite (fcntl's) do not see each other.
        """
        if len(self._locks) == 1:
            # Where it is another user's, SQLite says so when it is opened.
            with suppress(OSError):
                self._lock(os.open(self.path, os.O_RDONLY))

    def release(self) -> None:
        """Let another server have it; called when this process has no connection to it any more."""
        while self._locks:
            os.close(self._locks.pop())

    def _lock(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = "" if self._locks else os.pread(file, 20, 0).decode(errors="replace").strip()
            os.close(file)
            self.release()
            raise DatabaseRefused(
                f"Another server{f' (process {who})' if who else ''} has the database {self.path} open"
                f"{'' if who else ', maybe under another name of the file'}.",
                "Stop that server, or give this one a database of its own (--database-url).",
            ) from None
        self._locks.append(file)

    def tell_empty(self) -> None:
        """Log it where there is a file without anything in it: what it may have held is lost."""
        with suppress(OSError):
            if not self.path.stat().st_size:
                _log.warning(
                    "%s holds nothing, so it becomes a new database with new tokens. If it held jobs before, stop this "
                    "server and go back to a backup: advisor admin restore FILE.",
                    self.path,
                )

    def prove_there(self) -> None:
        """Raise DatabaseRefused unless there is a file."""
        if not self.path.exists():
            raise DatabaseRefused(
                f"There is no database at {self.path}.",
                "See that ADVISOR_DATA_DIR names the server's directory.",
            )

    def copy_to(self, target: Path) -> None:
        """Write a whole, consistent copy, readable by its owner only; a server may go on writing meanwhile.

        Raises DatabaseRefused when the target is there already, or cannot be written.
        """
        self.prove_there()
        partial = target.with_name(f".{target.name}.partial")
        partial.unlink(missing_ok=True)
        try:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o600))
            os.close(os.open(partial, os.O_CREAT | os.O_EXCL, 0o600))
            connection = sqlite3.connect(self.path, isolation_level=None)
            try:
                connection.execute("VACUUM INTO ?", (str(partial),))
            finally:
                connection.close()
            # What bears the name is whole: a copy that was broken off never does.
            partial.replace(target)
        except FileExistsError:
            raise DatabaseRefused(f"{target} is there already.", "Name a file that is not there.") from None
        except (OSError, sqlite3.Error) as error:
            partial.unlink(missing_ok=True)
            target.unlink(missing_ok=True)
            raise DatabaseRefused(
                f"{self.path} could not be copied to {target}: {error}",
                "See that the disk has room for a copy.",
            ) from error

    def copy_before(self, revision: str) -> Path:
        """Keep a copy from before the migration to `revision` beside the file; the oldest of many go."""
        target = self.path.with_name(f"{self.path.name}.before-{revision}")
        # One that is there is of an attempt that failed: the database is still what it was then, or older again.
        target.unlink(missing_ok=True)
        self.copy_to(target)
        _log.warning("The database is brought to revision %s. As it was before: %s", revision, target)
        named = re.compile(re.escape(self.path.name) + r"\.before-\d+")
        copies = sorted(path for path in self.path.parent.iterdir() if named.fullmatch(path.name))
        for old in copies[:-_COPIES]:
            old.unlink()
        return target

    def replace_by(self, copy: Path) -> Path | None:
        """Put a copy in this file's place; return where what was there lies now, None when nothing was.

        Raises DatabaseRefused while a server has the file, and when the copy is none or is damaged.
        """
        self.hold()
        self.hold_itself()
        try:
            fresh = self.path.with_name(f"{self.path.name}.restored")
            fresh.unlink(missing_ok=True)
            _prove_whole(copy)
            DatabaseFile(copy).copy_to(fresh)
            kept = None
            if self.path.exists():
                kept = _find_free(self.path)
                _fold_log_in(self.path)
                self.path.replace(kept)
            fresh.replace(self.path)
        finally:
            self.release()
        return kept

    def shrink(self) -> None:
        """Give the room of what was deleted back to the disk. Raises DatabaseRefused where that cannot be done."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        try:
            connection.execute("VACUUM")
        except sqlite3.Error as error:
            raise DatabaseRefused(
                f"What is old is gone, but {self.path} could not be made smaller: {error}.",
                "See that the disk has room for a second copy of it, and that `advisor admin check` finds nothing.",
            ) from error
        finally:
            connection.close()


def _prove_whole(path: Path) -> None:
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
        try:
            told = connection.execute("PRAGMA integrity_check").fetchall()
            connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608 - our own name
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise DatabaseRefused(
            f"{path} is no database of Fleet Advisor: {error}",
            "Name a file that `advisor admin backup` or a migration has written.",
        ) from error
    if told != [("ok",)]:
        raise DatabaseRefused(f"{path} is damaged: {told[0][0]}", "Use an older copy.")


def _fold_log_in(path: Path) -> None:
    """Write what the log beside a file holds into the file itself: no later database may find that log."""
    try:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
    except sqlite3.Error as error:
        _log.warning("%s cannot be read (%s): it is set aside as it is.", path, error)
    for rest in ("-wal", "-shm"):
        path.with_name(path.name + rest).unlink(missing_ok=True)


def _find_free(path: Path) -> Path:
    """A name beside a file that nothing has yet."""
    number = 1
    while (free := path.with_name(f"{path.name}.replaced-{number}")).exists():
        number += 1
    return free
