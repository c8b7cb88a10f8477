"""Visits: a token signs a browser in, and a random key, its cookie, stands for it from then on.

Only the key's hash is stored. A visit is as good as its token: it ends with it, and after a while without use.
"""

from datetime import datetime, timedelta

from advisor.errors import Unauthenticated
from advisor.protocol.views import Role
from advisor.services.tokens import NOTE_AFTER, Principal, authenticate, find_principal, hash_secret
from advisor.storage import UnitOfWork

IDLE = timedelta(hours=12)
MOST_OF_A_TOKEN = 100


def open_visit(work: UnitOfWork, key: str, token: str, now: datetime) -> None:
    """Sign in with a token of a person. Raises Unauthenticated, also for a token that is an agent's."""
    principal = authenticate(work, token, now)
    if principal.role is Role.AGENT:
        raise Unauthenticated("The token is an agent's: no person signs in with it.")
    work.visits.make_room(principal.token_id, MOST_OF_A_TOKEN - 1, now - IDLE)
    work.visits.add(hash_secret(key), principal.token_id, now)
    work.tokens.mark_used(principal.token_id, now)


def find_visit(work: UnitOfWork, key: str, now: datetime) -> tuple[Principal, bool] | None:
    """Return whose visit this is, and whether it should be marked as seen; None for one that is over or never was."""
    found = work.visits.find(hash_secret(key))
    if found is None or now - found[1] > IDLE:
        return None
    principal = find_principal(work, found[0], now)
    if principal is None or principal.spent:
        return None
    return principal, now - found[1] >= NOTE_AFTER


def close_visit(work: UnitOfWork, key: str) -> None:
    """End the visit of this key: the browser has to sign in again."""
    work.visits.remove(hash_secret(key))


def mark_visit(work: UnitOfWork, key: str, principal: Principal, now: datetime) -> None:
    """Note that somebody was there, which is a use of the visit's token too."""
    work.visits.mark(hash_secret(key), now)
    work.tokens.mark_used(principal.token_id, now)
