"""`advisor agents`: the nodes that a server has, and which of them it may use."""

import os
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from advisor.answers.wording import spell_duration
from advisor.cli.connection import connect
from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.options import JsonOption, screen_of
from advisor.client import Client
from advisor.protocol.views import AgentState, AgentView, Drain


def build_app() -> typer.Typer:
    """List agents; drain them, let them work again, remove them (administrators)."""
    app = typer.Typer(no_args_is_help=True)
    app.command("list")(list_agents)
    app.command("drain")(drain)
    app.command("resume")(resume)
    app.command("remove")(remove)
    return app


NameArgument = Annotated[str, typer.Argument(help="The agent's name.")]


def list_agents(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the agents that ever registered: what they are, what they do, when they leave, what speaks against them."""
    screen = screen_of(context)
    with connect(os.environ) as client:
        found = client.agents()
    if as_json:
        screen.print_json({"items": list(found)})
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    for heading in ("agent", "node", "pool", "labels", "state", "job", "leaves", "last seen", ""):
        table.add_column(heading)
    for agent in found:
        node = f"{agent.node.hostname}, {len(agent.node.devices) or 'no'} GPUs, {agent.node.cpu_count} CPUs"
        table.add_row(
            agent.name,
            node,
            agent.node.pool,
            _describe_labels(agent),
            _describe_state(agent),
            agent.job_id or "",
            "" if agent.ends_in_s is None else f"in {spell_duration(agent.ends_in_s)}",
            f"{agent.last_seen_s:.0f} s ago",
            agent.drained_because or (agent.flag.sentence if agent.flag else ""),
        )
    screen.show(table)


def drain(
    context: typer.Context,
    name: NameArgument,
    reason: Annotated[str, typer.Option(help="What a user who waits for the node reads.")] = Drain().reason,
) -> None:
    """Give an agent no further session. What it holds goes on to its end; `advisor agents resume` ends it."""
    with connect(os.environ) as client:
        agent = _find(client, name)
        client.drain_agent(agent.id, Drain(reason=reason))
    held = f" It finishes what it holds for job {agent.job_id} first." if agent.job_id else ""
    screen_of(context).tell(f"{name} takes no further session.{held}")


def resume(context: typer.Context, name: NameArgument) -> None:
    """Let an agent take sessions again that was drained, or set aside for what it measured."""
    with connect(os.environ) as client:
        client.resume_agent(_find(client, name).id)
    screen_of(context).tell(f"{name} takes sessions again.")


def remove(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME_OR_ID", help="The agent's name or its id.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove an agent that is gone for good. What was measured with it stays; its name is free for another one.

    Its own token counts no more. One that holds a session is drained first: it is removed when that has ended.
    """
    with connect(os.environ) as client:
        agent = _find(client, name, also_ids=True)
        if not yes:
            seen = f"{agent.node.hostname}, last seen {spell_duration(agent.last_seen_s)} ago"
            typer.confirm(f"Remove {agent.name} ({seen})?", abort=True, err=True)
        client.remove_agent(agent.id)
    screen_of(context).tell(f"{agent.name} is removed.")


def _describe_labels(agent: AgentView) -> str:
    words = [f"{key}={value}" for key, value in agent.node.labels.items()]
    return " ".join(words + ["(signed jobs only)"] * agent.node.signed_only)


def find_agent(client: Client, name: str) -> AgentView | None:
    """Return the agent of that name."""
    return next(iter(client.list_agents(name=name).items), None)


def _describe_state(agent: AgentView) -> str:
    """What it does; why it does nothing where it is idle, and is not to be used."""
    if agent.state is not AgentState.IDLE:
        return agent.state.value
    return "drained" if agent.drained_because else "set aside" if agent.flag else agent.state.value


def _find(client: Client, name: str, *, also_ids: bool = False) -> AgentView:
    if (found := find_agent(client, name)) is not None:
        return found
    known = client.agents()
    if also_ids and (named := [agent for agent in known if agent.id == name]):
        return named[0]
    names = ", ".join(agent.name for agent in known) or "none"
    raise CommandFailed(Exit.NOT_FOUND, f"There is no agent {name!r}.", f"The server knows {names}.")
