"""What `advisor tune --here` is told of the nodes: by its options, and by what started it on each of them."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.moments import read_span
from advisor.cli.tuning.job_options import TuneOptions
from advisor.data_dir import data_dir_of
from advisor.protocol.asked.jobs import JobSpec

if TYPE_CHECKING:  # Few commands run on nodes.
    from advisor.here.environments import Place


class Missing(StrEnum):
    """What becomes of a job one of whose nodes stays away."""

    WAIT = "wait"
    FEWER = "fewer"


def _told(told: str, *flags: str, **further: Any) -> Any:
    return typer.Option(*flags, help=told, rich_help_panel="With --here", **further)


_HERE = "This is one of several nodes that run the same command: Slurm, Kubernetes, MPI and others say which."
_JOIN = "Where node 0 leaves how to join it, in a folder that all see; without one: ADVISOR_JOIN_SECRET on each node."
_STATE = "Where node 0 keeps what was measured; the same command goes on from it."
_MISSING = "Whether the job waits for a node that stays away, or goes on with fewer."


@dataclass(frozen=True)
class HereOptions:
    """Options of a command that runs on each of several nodes."""

    here: Annotated[bool, _told(_HERE, "--here")] = False
    node_rank: Annotated[int | None, _told("Which node this is, by hand; with --nodes.", min=0)] = None
    head: Annotated[str | None, _told("Where the others reach node 0.", metavar="HOST")] = None
    state: Annotated[Path | None, _told(_STATE, metavar="DIR", show_default="advisor-<name>-state")] = None
    join_file: Annotated[Path | None, _told(_JOIN, metavar="FILE", show_default="in --state")] = None
    ends_in: Annotated[
        str | None, _told("The nodes are there for 30m or 3h only; of Slurm it is known.", metavar="SPAN")
    ] = None
    when_missing: Annotated[Missing, _told(_MISSING)] = Missing.WAIT
    started_by: Annotated[str, typer.Option(hidden=True)] = "tune --here"
    """The words after `advisor` that put this command on every node, for sentences that say how a job goes on."""
    patience: Annotated[float, _told("How long a node may stay away.", metavar="SPAN", parser=read_span)] = (
        "10m"  # type: ignore[assignment]
    )


@dataclass(frozen=True)
class Nodes:
    """What a command on nodes knows of them."""

    place: "Place"
    state: Path
    """The server's database, the agents' folders, the logs: what the next allocation goes on from."""
    join_file: Path
    when_missing: Missing
    patience_s: float
    again: str
    """The words after `advisor` by which a job of theirs goes on."""


def find_nodes(here: HereOptions, options: TuneOptions, environment: Mapping[str, str]) -> "Place":
    """Return which node this is, among how many."""
    from advisor.here.environments import NotANode, find_place

    typed = {"--node-rank": here.node_rank, "--nodes": options.nodes, "--head": here.head}
    by_hand = {flag: str(value) for flag, value in typed.items() if value is not None}
    try:
        return find_place(environment, by_hand, here.ends_in, time.time())
    except (NotANode, ValueError) as error:
        hint = getattr(error, "hint", "Give --ends-in a span: 30m, 3h.")
        raise CommandFailed(Exit.USAGE, str(error), hint) from error


def fit_options(options: TuneOptions, place: "Place") -> TuneOptions:
    """Return the options of a job that takes all nodes, where they do not say how many it takes."""
    return replace(options, nodes=place.count) if options.nodes is None else options


def launch_ranks(command: Sequence[str], place: "Place") -> list[str]:
    """Return the launch command of one node; a plain python, which joins no other, becomes torch's launcher."""
    from advisor.protocol.training.command_options import split_variables
    from advisor.protocol.training.launch_command import Command

    variables, words = split_variables(command)
    launch = Command.read(words).launch
    if launch is None or launch.is_torchrun or place.count * place.tasks == 1:
        return list(command)
    ranks = ("-m", "torch.distributed.run", "--nproc-per-node", str(place.tasks))
    typed = command[: len(variables)]
    return [*typed, launch.launcher, *launch.python_options, *ranks, *launch.script, *launch.arguments]


def settle_nodes(
    place: "Place",
    here: HereOptions,
    spec: JobSpec | None,
    output: Path | None,
    environment: Mapping[str, str],
) -> Nodes:
    """Return what a command knows of its nodes; the folder beside its answer's is the same on each of them."""
    from advisor.cli.tuning.strategy_files import name_directory

    if here.state is None and spec is not None:
        beside = output or name_directory(spec.name)
        state = beside.with_name(f"{beside.name}-state")
    else:
        state = here.state or data_dir_of(environment)
    state = state.expanduser().absolute()
    join_file = (here.join_file or state / "join.json").expanduser().absolute()
    # What was said by hand has to be said again; each node has a number of its own.
    by_hand = {"--node-rank": "N", "--nodes": place.count, "--head": place.head}
    said = {flag: value for flag, value in by_hand.items() if flag in place.sources.values()}
    kept = {**said, "--state": state, "--output": output}
    again = [word for flag, value in kept.items() if value for word in (flag, str(value))]
    return Nodes(
        place, state, join_file, here.when_missing, here.patience, f"{here.started_by} {shlex.join(again)}"
    )


def describe_nodes(nodes: Nodes, environment: Mapping[str, str]) -> list[str]:
    """Return what was read from where, a line each."""
    from advisor.answers.wording import spell_duration
    from advisor.here.join import read_secret

    place, read = nodes.place, nodes.place.sources
    left = "not known" if place.ends_in_s is None else spell_duration(place.ends_in_s)
    secret = "ADVISOR_JOIN_SECRET" if read_secret(environment) else f"{nodes.join_file}, which node 0 makes"
    rows = {
        "engine": (place.engine, ""),
        "node": (f"{place.rank} of {place.count}", " and ".join(filter(None, map(read.get, ("node", "nodes"))))),
        "task": (f"{place.task} of {place.tasks} on this node", read.get("tasks", "")),
        "name": (place.name, read["name"]),
        "node 0": (place.head or "as the join file says", read.get("head", "")),
        "ends in": (left, read.get("ends in", "no variable, no --ends-in")),
        "stop": ("SIGTERM, SIGINT, SIGUSR1, and a minute before the end", ""),
        "secret": (secret, ""),
        "state": (str(nodes.state), ""),
    }  # fmt: skip
    return [f"{what:8} {value}{f'  ({source})' if source else ''}" for what, (value, source) in rows.items()]
