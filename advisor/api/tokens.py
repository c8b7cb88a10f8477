"""Routes of tokens: making, listing and revoking them."""

from fastapi import APIRouter

from advisor.api.access import Admin
from advisor.api.context import Here
from advisor.protocol.views import CreatedToken, NewToken, TokenPage
from advisor.services import tokens

router = APIRouter(prefix="/tokens", tags=["tokens"])


@router.post("", status_code=201, summary="Make a token")
def create_token(request: NewToken, _: Admin, context: Here) -> CreatedToken:
    """Make a token. The answer is the only place where it can be read."""
    with context.database.begin() as work:
        return tokens.create_token(work, request.role, request.label, context.clock())


@router.get("", summary="List tokens")
def list_tokens(_: Admin, context: Here) -> TokenPage:
    """Return all tokens, newest first, without their secrets."""
    with context.database.read() as work:
        return tokens.list_tokens(work)


@router.delete("/{token_id}", status_code=204, summary="Revoke a token")
def revoke_token(token_id: str, _: Admin, context: Here) -> None:
    """Make a token useless at once."""
    with context.database.begin() as work:
        tokens.revoke_token(work, token_id, context.clock())
