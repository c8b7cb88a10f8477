"""The server's settings: environment variables that start with ADVISOR_, read when `Settings()` is made."""

import ipaddress
from pathlib import Path

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from advisor.data_dir import default_data_dir
from advisor.protocol.logs import LogFormat


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
    tls_certificate: Path | None = None
    """PEM file with the server's certificate and those that vouch for it; with it the server speaks TLS."""
    tls_key: Path | None = None
    """PEM file with the certificate's key, where the certificate's file does not hold it."""
    trusted_proxies: tuple[str, ...] = ()
    """Addresses or networks that may speak plain HTTP to a server beyond loopback, as a JSON list: the proxy with TLS
    in front of it. Only they are believed whom they forward for (X-Forwarded-For)."""
    plain_networks: tuple[str, ...] = ()
    """Addresses or networks that may speak plain HTTP as well, as a JSON list: a network of the server's own. Nobody in
    them is believed to forward for others."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, besides localhost and the loopback addresses, that requests may name; as a JSON list."""
    most_requests_per_s: float = Field(default=100.0, gt=0)
    """Requests a second that one token may go on sending; more are answered 429 with Retry-After."""
    most_requests_at_once: int = Field(default=1000, ge=1)
    """Requests that one token may send faster than that, after it was quiet."""
    most_streams: int = Field(default=64, ge=1)
    """Streams of events that one token may hold open; more are answered 429."""
    log_format: LogFormat = LogFormat.TEXT
    """`text` for people: what went wrong, and requests that the server failed. `json` for programs: an object a line,
    every request among them."""
    poll_s: float = Field(default=20.0, gt=0, le=60)
    """Longest time an agent's request for work is held open, in seconds."""
    stream_s: float = Field(default=600.0, gt=0)
    """Longest time a stream of events is held open, in seconds; who listens connects again."""
    look_s: float = Field(default=2.0, gt=0, le=5)
    """Time between two looks for the places of all agents that wait, in seconds; those formed here are told at once."""
    beat_s: float = Field(default=2.0, gt=0)
    """How often an agent renews its session, in seconds."""
    lease_s: float = Field(default=30.0, gt=0)
    """A renewal is good for this long, in seconds."""
    grace_s: float = Field(default=5.0, gt=0)
    """A session is lost this many seconds after a lease ran out: agents fence themselves well before."""
    restart_s: float = Field(default=60.0, gt=0)
    """What a starting server finds alive stays so for this long at least, in seconds: agents that waited for it."""
    assemble_s: float = Field(default=60.0, gt=0)
    """A gang that is not complete after this many seconds is lost."""
    tick_s: float = Field(default=2.0, gt=0)
    """How often leases are checked and waiting jobs are looked at, in seconds."""

    hub_samplers: str = ""
    """Where samplers named hub:NAME come from, whose code the server then runs: `github`, OptunaHub's own registry, or
    a directory laid out like it (package/samplers/NAME); empty allows none."""
    planner_processes: int = Field(default=1, ge=0, le=64)
    """Processes that think about what comes next, so that requests do not wait for it (about 150 MB each); for as long
    as decisions are slow, up to four. 0: the server thinks itself, as one that serves a single job does."""
    prune: bool = True
    """Whether the server takes away what is older than the following days by itself; `false` leaves it to
    `advisor admin prune`, which counts the same days."""
    keep_jobs_days: float = Field(default=365, ge=1)
    """Jobs that ended so long ago go with all that they measured and their advice. Archived ones stay, and those whose
    strategy a real training was reported to use since."""
    keep_logs_days: float = Field(default=90, ge=1)
    """What the training processes of jobs wrote that ended so long ago; the tail of each failure stays."""
    keep_telemetry_days: float = Field(default=30, ge=1)
    """Samples of jobs that ended so long ago; what blocks and pages show of them stays."""
    keep_quarantine_days: float = Field(default=30, ge=1)
    """Results that did not count."""
    keep_agents_days: float = Field(default=90, ge=1)
    """Agents that were not heard of for so long, and that measured nothing that is kept."""
    keep_tokens_days: float = Field(default=30, ge=1)
    """Tokens that were revoked or expired so long ago, and keys of submissions that can hardly be repeated any more."""

    @field_validator("trusted_proxies", "plain_networks")
    @classmethod
    def _refuse_what_is_no_network(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError as error:
                raise ValueError(
                    f"{proxy!r} is no address and no network: give 10.0.0.5 or 10.0.0.0/24 ({error})"
                ) from error
        return proxies

    @property
    def url(self) -> str:
        """The database's URL."""
        return self.database_url or f"sqlite:///{self.data_dir / 'advisor.db'}"


def find_exposure(settings: Settings) -> str:
    """Return why the server must not listen where it is told to, in sentences that say what to do; "" where it may."""
    is_encrypted = settings.tls_certificate is not None or settings.trusted_proxies
    if is_loopback(settings.host) or is_encrypted or settings.plain_networks:
        return ""
    return (
        f"Listening on {settings.host or 'every address'} would send tokens and jobs over the network unencrypted. "
        "Give the server a certificate: ADVISOR_TLS_CERTIFICATE=server.pem ADVISOR_TLS_KEY=server.key. Or name the "
        "proxy with TLS that stands in front of it: ADVISOR_TRUSTED_PROXIES='[\"10.0.0.5\"]'. Or listen on 127.0.0.1 "
        "and reach it through ssh -L."
    )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
