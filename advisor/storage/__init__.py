"""The database: tables, guarded transitions and migrations. The only package that imports sqlalchemy."""

from advisor.storage.database import Database
from advisor.storage.sqlite.database_file import DatabaseRefused
from advisor.storage.work import UnitOfWork

__all__ = ["Database", "DatabaseRefused", "UnitOfWork"]
