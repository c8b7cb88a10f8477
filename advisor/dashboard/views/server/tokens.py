"""The page of tokens: what each role may do, and whether a token still opens anything."""

from datetime import datetime

from advisor.dashboard.views.chips import Chip
from advisor.protocol.views import Role, TokenView
from advisor.services.tokens import tell_spent

ROLES = {
    Role.VIEWER: "look at jobs, advice and agents",
    Role.SUBMITTER: "also submit jobs, and change those of its label or team",
    Role.ADMIN: "also change every job, agents and tokens",
    Role.AGENT: "register agents, nothing else",
}
"""What each role may do, in the words of the form."""


def judge_token(token: TokenView, now: datetime) -> Chip:
    """Return the chip of a token: valid, or why it opens nothing any more."""
    if spent := tell_spent(token, now):
        return Chip("muted", "minus", token.tell_state(now), spent)
    return Chip("good", "check", "valid")
