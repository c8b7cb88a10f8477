"""Tokens: who may ask for what. A token is `adv_<role>_<id>_<secret>`; only its secret's SHA-256 is stored."""

import hashlib
import hmac
import os
import secrets
import threading
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from advisor.errors import InvalidRequest, TokenNotFound, Unauthenticated, Unavailable
from advisor.protocol.views import CreatedToken, NewToken, Role, TokenPage, TokenRotation, TokenView
from advisor.services.pages import cut_page, read_moment
from advisor.storage import Database, UnitOfWork
from advisor.storage.fault_points import FaultPoint
from advisor.storage.page_sizes import Part

_PREFIX = "adv"
_SECRET_BYTES = 32
_MOST_KNOWN = 100_000
"""Tokens that are known at once, more than a server has agents: where all of them ask in turn and one more than these
does, each is forgotten before it asks again. One takes half a kilobyte."""
USED_UP = "The token has let in as many agents as it was for."
NOTE_AFTER = timedelta(minutes=5)
"""A use of a token is written down that often only: requests read, they do not write."""
FIRST_TOKENS = {Role.ADMIN: "admin-token", Role.AGENT: "agent-token"}
"""The tokens of a server's first start, with the files they are written to."""


@dataclass(frozen=True)
class Principal:
    """Who is asking."""

    token_id: str
    role: Role
    name: str
    """What the token was labelled with; it becomes the owner of submitted jobs."""
    team: str = ""
    """Whose jobs the token may change besides its owner's."""
    agent_id: str | None = None
    """The agent that the token belongs to; None for people and for a token that agents register with."""
    agent: str | None = None
    """That agent's name."""
    spent: str = ""
    """Why the token opens nothing any more, in a sentence; empty while it does."""
    expires_at: datetime | None = None
    """When it ends by itself."""

    @property
    def may_administer(self) -> bool:
        """Whether this one may change agents, and see, make and revoke tokens."""
        return self.role is Role.ADMIN

    @property
    def may_submit(self) -> bool:
        """Whether this one may submit jobs."""
        return self.role in {Role.SUBMITTER, Role.ADMIN}


def identify(work: UnitOfWork, token: str, now: datetime) -> Principal:
    """Return whose token this is, or was: `spent` says whether it still counts. Raises Unauthenticated."""
    parts = token.split("_", 3)
    if len(parts) == 4 and parts[0] == _PREFIX and token.isascii():
        found = work.tokens.secret_of(parts[2])
        # The comparison comes last and takes the same time for every wrong secret.
        if found is not None and hmac.compare_digest(found[0], hash_secret(parts[3])):
            return _name_principal(*found[1:], now)
    raise Unauthenticated("The token is unknown.")


def find_principal(work: UnitOfWork, token_id: str, now: datetime) -> Principal | None:
    """Return whose token that is, for a browser that has proved before that it is its own; None when it is gone."""
    found = work.tokens.secret_of(token_id)
    return None if found is None else _name_principal(*found[1:], now)


def _name_principal(view: TokenView, agent_id: str | None, now: datetime) -> Principal:
    # Without a label the name holds the token's id, so that jobs of two such tokens have two owners.
    name = view.label or f"{view.role.value} {view.id}"
    spent = tell_spent(view, now)
    return Principal(view.id, view.role, name, view.team, agent_id, view.agent, spent, view.expires_at)


def authenticate(work: UnitOfWork, token: str, now: datetime) -> Principal:
    """Return whose token this is. Raises Unauthenticated, also for one that is revoked or has expired."""
    principal = identify(work, token, now)
    if principal.spent:
        raise Unauthenticated(principal.spent)
    return principal


class KnownTokens:
    """Whose tokens counted when they were last looked up: until any token changes, they need not be looked up again.

    A look-up costs about as much as the rest of a short request. A look notes the token's use where none was noted for
    some minutes; an agent's own token is left out, for when the agent was last seen is known anyway.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._known: tuple[object, dict[str, Principal]] = object(), {}
        """The stamp that tokens had before any of these was looked up, and whose they are, by a hash of the whole."""
        self._noted: dict[str, datetime] = {}
        """When a use of each token was last noted."""

    def find(self, token: str, now: datetime) -> Principal | None:
        """Return whose token this is, if that is known and its use need not be noted."""
        stamp, known = self._known
        if stamp is not self._database.tokens_stamp:
            return None
        principal = known.get(hash_secret(token))
        if principal is None or self._is_due(principal, now):
            return None
        has_expired = principal.expires_at is not None and principal.expires_at <= now
        return None if has_expired else principal

    def authenticate(self, token: str, now: datetime) -> Principal:
        """Look up whose token this is, and know it from now on. Raises Unauthenticated."""
        # Read before the look: what changes meanwhile has another stamp.
        stamp = self._database.tokens_stamp
        with self._database.read() as work:
            principal = authenticate(work, token, now)
        with self._lock:
            if self._known[0] is not stamp or len(self._known[1]) >= _MOST_KNOWN:
                self._known = stamp, {}
            self._known[1][hash_secret(token)] = principal
        if self._is_due(principal, now):
            self._note(principal, now)
        return principal

    def _is_due(self, principal: Principal, now: datetime) -> bool:
        noted = self._noted.get(principal.token_id)
        return principal.agent_id is None and (noted is None or now - noted >= NOTE_AFTER)

    def _note(self, principal: Principal, now: datetime) -> None:
        with self._lock:
            if len(self._noted) >= _MOST_KNOWN:
                self._noted = {}
            self._noted[principal.token_id] = now
        # A database that cannot be written to may still be read.
        with suppress(Unavailable), self._database.begin() as work:
            work.tokens.mark_used(principal.token_id, now)


def still_counts(work: UnitOfWork, principal: Principal, now: datetime) -> bool:
    """Whether a token that opened something earlier would open it now."""
    found = find_principal(work, principal.token_id, now)
    return found is not None and not found.spent


def create_token(
    work: UnitOfWork, wanted: NewToken, now: datetime, agent_id: str | None = None
) -> CreatedToken:
    """Make a token; the answer is the only place where it can be read."""
    token_id, secret = work.new_id(), secrets.token_urlsafe(_SECRET_BYTES)
    expires_at = None if wanted.expires_s is None else now + timedelta(seconds=wanted.expires_s)
    work.reach(FaultPoint.TOKEN_MADE)
    work.tokens.add(
        token_id,
        wanted.role,
        wanted.label,
        hash_secret(secret),
        now,
        agent_id,
        expires_at=expires_at,
        uses=wanted.uses,
        team=wanted.team,
    )
    return CreatedToken(
        id=token_id,
        role=wanted.role,
        label=wanted.label,
        team=wanted.team,
        created_at=now,
        expires_at=expires_at,
        uses_left=wanted.uses,
        token=f"{_PREFIX}_{wanted.role.value}_{token_id}_{secret}",
    )


def rotate_token(work: UnitOfWork, token_id: str, wanted: TokenRotation, now: datetime) -> CreatedToken:
    """Make a token like this one, which ends after a while of grace.

    Raises TokenNotFound, and InvalidRequest for an agent's own token and for one that opens nothing any more.
    """
    view, agent_id = _find(work, token_id)
    if agent_id is not None:
        raise InvalidRequest(
            f"Token {token_id} is agent {view.agent}'s own.", hint="Start the agent again: it gets a new one."
        )
    if spent := tell_spent(view, now):
        raise InvalidRequest(f"There is nothing to rotate. {spent}", hint="Make a new one.")
    # A use of the old one would be one more than the two were for.
    grace_s = wanted.grace_s if view.uses_left is None else 0.0
    work.tokens.expire(token_id, now + timedelta(seconds=grace_s))
    new = NewToken(
        role=view.role,
        label=view.label,
        team=view.team,
        expires_s=wanted.expires_s,
        uses=view.uses_left,
    )
    return create_token(work, new, now)


def list_tokens(work: UnitOfWork, limit: int, cursor: str | None, of_agents: bool | None = None) -> TokenPage:
    """Return a page of tokens without their secrets: all, those that agents got for themselves, or the others.

    Raises InvalidRequest for a cursor that no page gave.
    """
    found = work.tokens.page(limit + 1, read_moment(cursor), of_agents)
    places = [(f"{token.created_at.isoformat()} {token.id}", token) for token in found]
    items, next_cursor = cut_page(Part(places, limit))
    return TokenPage(items=items, next_cursor=next_cursor)


def revoke_token(work: UnitOfWork, token_id: str, now: datetime) -> None:
    """Make a token useless at once; repeating it changes nothing. Raises TokenNotFound.

    The agent whose own token it was is turned out: it cannot fetch itself another one.
    """
    _, agent_id = _find(work, token_id)
    if work.tokens.revoke(token_id, now) and agent_id is not None:
        work.agents.turn_out(agent_id, now)


def ensure_first_tokens(database: Database, data_dir: Path, now: datetime) -> None:
    """Make sure that an administrator and an agent can get in: a token each, in files only the owner can read.

    A file whose token still works is left alone; otherwise it is written anew.
    """
    for role, filename in FIRST_TOKENS.items():
        path = data_dir / filename
        if _works(database, path, role, now):
            continue
        with database.begin() as work:
            created = create_token(work, NewToken(role=role, label=f"first {role.value}"), now)
            # Before the commit: a file without its token is replaced at the next start, the reverse would lock
            # the administrator out.
            _write_private(path, created.token)


def _find(work: UnitOfWork, token_id: str) -> tuple[TokenView, str | None]:
    if (found := work.tokens.secret_of(token_id)) is None:
        raise TokenNotFound(f"There is no token {token_id}.")
    return found[1:]


def tell_spent(view: TokenView, now: datetime) -> str:
    """Return why a token opens nothing any more, in a sentence; "" while it does."""
    return {
        "valid": "",
        "revoked": "The token is revoked.",
        "expired": f"The token expired at {view.expires_at:%Y-%m-%d %H:%M} UTC." if view.expires_at else "",
        "used up": USED_UP,
    }[view.tell_state(now)]


def _works(database: Database, path: Path, role: Role, now: datetime) -> bool:
    try:
        token = path.read_text().strip()
    except FileNotFoundError:
        return False
    with database.read() as work:
        try:
            return authenticate(work, token, now).role is role
        except Unauthenticated:
            return False


def _write_private(path: Path, token: str) -> None:
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{token}\n")
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def hash_secret(secret: str) -> str:
    """Return what is stored of a secret. It is random and long: a slow hash would add nothing."""
    return hashlib.sha256(secret.encode()).hexdigest()
