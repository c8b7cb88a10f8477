"""`advisor token`: who may do what on a server."""

import os
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from advisor.cli.commands.operating.agents import find_agent
from advisor.cli.connection import connect
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.moments import read_span
from advisor.cli.options import JsonOption, screen_of
from advisor.protocol.views import CreatedToken, NewToken, Role, TokenRotation, TokenView


def build_app() -> typer.Typer:
    """Create, list, exchange and revoke tokens (administrators)."""
    app = typer.Typer(no_args_is_help=True)
    app.command("create")(create)
    app.command("list")(list_tokens)
    app.command("rotate")(rotate)
    app.command("revoke")(revoke)
    app.command("readmit")(readmit)
    return app


Expires = Annotated[
    float | None,
    typer.Option(parser=read_span, metavar="SPAN", help="Let it end by itself: 90s, 30m, 1h, 7d."),
]


def create(
    context: typer.Context,
    role: Annotated[Role, typer.Option(help="What the token allows.")] = Role.SUBMITTER,
    label: Annotated[str, typer.Option(help="Whose it is: the owner of the jobs that it submits.")] = "",
    team: Annotated[
        str, typer.Option(help="Whose jobs it may cancel and continue besides its owner's.")
    ] = "",
    expires: Expires = None,
    uses: Annotated[
        int | None, typer.Option(min=1, help="How many agents may register with it (role agent).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token and print it: the only time that it is shown."""
    if uses is not None and role is not Role.AGENT:
        raise typer.BadParameter("--uses counts agents that register: it is for --role agent.")
    with connect(os.environ) as client:
        token = client.create_token(NewToken(role=role, label=label, team=team, expires_s=expires, uses=uses))
    _tell_created(context, token, as_json)


def rotate(
    context: typer.Context,
    token_id: Annotated[str, typer.Argument(metavar="ID")],
    grace: Annotated[
        float, typer.Option(parser=read_span, metavar="SPAN", help="How long the old one still works.")
    ] = "1h",  # type: ignore[assignment]
    expires: Expires = None,
    as_json: JsonOption = False,
) -> None:
    """Create a token in place of another one, which ends after a while of grace."""
    with connect(os.environ) as client:
        token = client.rotate_token(token_id, TokenRotation(grace_s=grace, expires_s=expires))
    _tell_created(context, token, as_json)


def _tell_created(context: typer.Context, token: CreatedToken, as_json: bool) -> None:
    screen = screen_of(context)
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
    for title in ("id", "role", "label", "team", "created", "last used", "state"):
        table.add_column(title)
    for token in tokens:
        created = f"{token.created_at:%Y-%m-%d %H:%M}"
        table.add_row(
            token.id,
            token.role,
            token.label or token.agent or "",
            token.team,
            created,
            f"{token.last_used_at:%Y-%m-%d %H:%M}" if token.last_used_at else "never",
            _tell_state(token),
        )
    screen.show(table)


def _tell_state(token: TokenView) -> str:
    state = token.tell_state(datetime.now(UTC))
    return state if state != "valid" else ", ".join(token.list_limits()) or state


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


def readmit(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name.")],
    as_json: JsonOption = False,
) -> None:
    """Let an agent register again whose token was revoked, or that lost its work directory."""
    screen = screen_of(context)
    with connect(os.environ) as client:
        found = find_agent(client, name)
        if found is None:
            raise CommandFailed(
                Exit.NOT_FOUND, f"The server knows no agent {name}.", "The page of agents lists their names."
            )
        client.readmit_agent(found.id)
    if as_json:
        screen.print_json({"name": name, "readmitted": True})
    else:
        screen.show(f"Agent {name} may register again.")
