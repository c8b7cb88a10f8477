"""The server's settings: environment variables that start with ADVISOR_, read when `Settings()` is made."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from advisor.data_dir import default_data_dir


class Settings(BaseSettings):
    """How the server runs. Every field can be set as ADVISOR_<NAME>."""

    model_config = SettingsConfigDict(env_prefix="ADVISOR_", extra="ignore", use_attribute_docstrings=True)

    data_dir: Path = Field(default_factory=default_data_dir)
    """Directory of the database and of the first tokens; made with mode 0700."""
    database_url: str = ""
    """`postgresql+psycopg://user@host/name`, or `sqlite:///path`; empty is a SQLite file in the data directory."""
    host: str = "127.0.0.1"
    """Address to listen on. Every route needs a token, on loopback too; there is no switch to turn that off."""
    port: int = Field(default=8765, ge=0, le=65535)
    """Port to listen on; 0 picks a free one."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, besides localhost and the loopback addresses, that requests may name; as a JSON list."""
    poll_s: float = Field(default=10.0, gt=0, le=60)
    """Longest time an agent's request for work is held open, in seconds."""
    look_s: float = Field(default=0.25, gt=0, le=5)
    """Time between two looks for the places of all agents that wait, in seconds; those formed here are told at once."""
    beat_s: float = Field(default=2.0, gt=0)
    """How often an agent renews its session, in seconds."""
    lease_s: float = Field(default=30.0, gt=0)
    """A renewal is good for this long, in seconds."""
    grace_s: float = Field(default=5.0, gt=0)
    """A session is lost this many seconds after a lease ran out: agents fence themselves well before."""
    assemble_s: float = Field(default=60.0, gt=0)
    """A gang that is not complete after this many seconds is lost."""
    tick_s: float = Field(default=1.0, gt=0)
    """How often leases are checked and waiting jobs are looked at, in seconds."""

    @property
    def url(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{self.data_dir / 'advisor.db'}"
