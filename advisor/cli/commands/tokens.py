"""`advisor token`: who may do what on a server."""

import os
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from advisor.cli.connection import connect
from advisor.cli.options import JsonOption, screen_of
from advisor.protocol.views import Role


def build_app() -> typer.Typer:
    """Return the group of commands about tokens."""
    app = typer.Typer(help="Create, list and revoke tokens (administrators).", no_args_is_help=True)
    app.command("create")(create)
    app.command("list")(list_tokens)
    app.command("revoke")(revoke)
    return app


def create(
    context: typer.Context,
    role: Annotated[Role, typer.Option(help="What the token allows.")] = Role.SUBMITTER,
    label: Annotated[str, typer.Option(help="Whose it is, for the list.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Create a token and print it: the only time that it is shown."""
    screen = screen_of(context)
    with connect(os.environ) as client:
        token = client.create_token(role, label)
    if as_json:
        screen.print_json(token)
    else:
        screen.tell(f"Token {token.id} for the role {token.role}. It is not shown again:")
        screen.print_text(token.token)


def list_tokens(context: typer.Context, as_json: JsonOption = False) -> None:
    """List tokens, without their secrets."""
    screen = screen_of(context)
    with connect(os.environ) as client:
        tokens = client.tokens()
    if as_json:
        screen.print_json({"items": list(tokens)})
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for title in ("id", "role", "label", "created", "state"):
        table.add_column(title)
    for token in tokens:
        created = f"{token.created_at:%Y-%m-%d %H:%M}"
        table.add_row(
            token.id,
            token.role,
            token.label or token.agent or "",
            created,
            "revoked" if token.revoked_at else "valid",
        )
    screen.show(table)


def revoke(
    context: typer.Context,
    token_id: Annotated[str, typer.Argument(metavar="ID")],
    as_json: JsonOption = False,
) -> None:
    """Make a token useless at once."""
    screen = screen_of(context)
    with connect(os.environ) as client:
        client.revoke_token(token_id)
    if as_json:
        screen.print_json({"id": token_id, "revoked": True})
    else:
        screen.show(f"Token {token_id} is revoked.")
