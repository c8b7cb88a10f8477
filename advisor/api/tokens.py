"""Routes of tokens: making, listing, exchanging and revoking them."""

from advisor.api.access import Admin, Cursor, Limit
from advisor.api.context import Here
from advisor.api.strict_json import make_router
from advisor.protocol.views import CreatedToken, NewToken, TokenPage, TokenRotation
from advisor.services import tokens

router = make_router(prefix="/tokens", tags=["tokens"])


@router.post("", status_code=201, summary="Make a token")
def create_token(request: NewToken, _: Admin, context: Here) -> CreatedToken:
    """Make a token. The answer is the only place where it can be read."""
    with context.database.begin() as work:
        return tokens.create_token(work, request, context.clock())


@router.post("/{token_id}:rotate", status_code=201, summary="Exchange a token")
def rotate_token(token_id: str, request: TokenRotation, _: Admin, context: Here) -> CreatedToken:
    """Make a token of the same role, label and team; the old one still works for a while of grace, then ends."""
    with context.database.begin() as work:
        return tokens.rotate_token(work, token_id, request, context.clock())


@router.get("", summary="List tokens")
def list_tokens(_: Admin, context: Here, limit: Limit = 500, cursor: Cursor = None) -> TokenPage:
    """Return a page of tokens, newest first, without their secrets."""
    with context.database.read() as work:
        return tokens.list_tokens(work, limit, cursor)


@router.delete("/{token_id}", status_code=204, summary="Revoke a token")
def revoke_token(token_id: str, _: Admin, context: Here) -> None:
    """Make a token useless at once."""
    with context.database.begin() as work:
        tokens.revoke_token(work, token_id, context.clock())
