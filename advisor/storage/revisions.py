"""Databases that this release cannot serve, by the revision of their tables."""

from collections.abc import Collection

from advisor import __version__
from advisor.storage.sqlite.database_file import DatabaseRefused


def refuse_unknown(revision: str, known: Collection[str], place: str) -> None:
    """Raise DatabaseRefused for a revision before or after those that are known; `place` says which database it is."""
    if revision < min(known):
        raise DatabaseRefused(
            f"A version from before the first release has written the database {place} (revision {revision}), and this "
            "one cannot read it.",
            "Move it away to keep it, or remove it: the server then begins with a new one.",
        )
    if revision > max(known):
        raise DatabaseRefused(
            f"A newer release has written the database: it is of revision {revision}, and this release "
            f"({__version__}) knows those up to {max(known)}.",
            "Install the release that has served it, or a newer one; or go back to a copy from before its migration "
            "(`advisor admin restore`).",
        )
