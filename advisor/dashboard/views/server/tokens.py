"""The page of tokens: whose each is and what it opens; one that was just made, and how it is used."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.dashboard.source import Person
from advisor.dashboard.views.chips import Chip
from advisor.protocol.views import CreatedToken, Role, TokenView
from advisor.services.tokens import tell_spent

ROLES = {
    Role.VIEWER: "look at jobs, advice and agents",
    Role.SUBMITTER: "also submit jobs, and change those of its label or team",
    Role.ADMIN: "also change every job, agents and tokens",
    Role.AGENT: "register agents, nothing else",
}
"""What each role may do, in the words of the form."""


@dataclass(frozen=True)
class TokenLine:
    """One token, without its secret."""

    id: str
    label: str
    """Whose it is; "" for a token without a label."""
    role: str
    team: str
    chip: Chip
    created: str
    limits: tuple[str, ...]
    """When it ends, and how many agents it still lets in; empty for a token without an end."""
    is_mine: bool
    """Whether the person who looks is signed in with it."""
    may_rotate: bool
    may_revoke: bool


@dataclass(frozen=True)
class NewTokenNote:
    """A token that was just made: the only page that shows it."""

    title: str
    secret: str
    how: str
    """What to do with it, in a sentence."""
    command: str


def view_tokens(tokens: Sequence[TokenView], person: Person, now: datetime) -> list[TokenLine]:
    """Build the rows in the order given."""
    return [_view(token, person, now) for token in tokens]


def _view(token: TokenView, person: Person, now: datetime) -> TokenLine:
    spent = tell_spent(token, now)
    return TokenLine(
        id=token.id,
        label=token.agent or token.label,
        role=token.role.value,
        team=token.team,
        chip=Chip("muted", "minus", token.tell_state(now), spent)
        if spent
        else Chip("good", "check", "valid"),
        created=f"{token.created_at:%Y-%m-%d %H:%M}",
        limits=token.list_limits(),
        is_mine=token.id == person.token_id,
        may_rotate=not spent and token.agent is None,
        may_revoke=token.revoked_at is None,
    )


def view_new_token(token: CreatedToken, server_url: str) -> NewTokenNote:
    """Build the note about a token that was just made."""
    of = f" for {token.label}" if token.label else ""
    if token.role is Role.AGENT:
        how = "Write it to the file agent-token on the node, readable by the agent only; then start the agent there:"
        command = f"advisor-agent run --server {server_url} --token-file agent-token --allow-root /srv/train"
    else:
        how = "Whoever it is for signs in with it: here in the browser, or on the command line, which asks for it:"
        command = f"advisor login {server_url}"
    return NewTokenNote(f"Token {token.id} of the role {token.role.value}{of}", token.token, how, command)
