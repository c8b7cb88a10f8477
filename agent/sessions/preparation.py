"""Prepares one launch: the operator's rules, what the job names, what may not change, and the order for the shim."""

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from advisor.protocol.measured.messages import AgentRegistered, Assignment
from agent.backends import BACKENDS, read_assignment
from agent.backends.launch import Launch, SessionPlace, Wanted
from agent.backends.own_knobs import place_copies
from agent.client import ServerClient
from agent.devices.gpus import Gpus
from agent.errors import Unlaunchable
from agent.files import DIRECT, Files
from agent.guard.account import Account
from agent.guard.caches import list_caches, name_user
from agent.guard.isolation import (
    Isolation,
    JobLayers,
    Protection,
    list_argument_directories,
    name_scratch,
    plan_protection,
)
from agent.guard.rank_folder import choose_temporary, name_folder
from agent.guard.shim import Order
from agent.sessions.delivery import Delivery
from agent.sessions.starting import Starts
from agent.settings import AgentSettings
from agent.trust.allowance import Allowance, find_refusal


@dataclass(frozen=True)
class NodeContext:
    """Made anew at every registration."""

    settings: AgentSettings
    client: ServerClient
    registered: AgentRegistered
    delivery: Delivery
    isolation: Isolation | None
    """None when the operator switched protection off."""
    gpus: Gpus
    account: Account | None
    """The user that scripts run as; None: the agent's own."""
    agent_marker: str
    environment: Mapping[str, str]
    """The agent's own environment."""
    stopping: threading.Event
    """Set when the agent is asked to stop."""
    clock: Callable[[], float]
    """Seconds that also count while the machine sleeps."""
    layers: JobLayers = field(default_factory=JobLayers)
    """What the launches of one job write to caches."""
    starts: Starts = field(default_factory=Starts)
    """How long they took until their first step."""


def prepare_launch(
    assignment: Assignment, rendezvous: str, place: SessionPlace, context: NodeContext
) -> Launch:
    """Return what is started on this node; nothing that the job names is opened before the operator's rules allow it.

    Raises Unlaunchable for what the operator or this node refuses, AgentStopped when the agent is to stop meanwhile.
    """
    wanted = read_assignment(assignment, rendezvous, place)
    _refuse_foreign(wanted, context.settings.allow)
    wanted, copies = place_copies(wanted)
    if copies:
        # A copy may stand where the rules want a path inside the roots.
        _refuse_foreign(wanted, context.settings.allow)
    launch = BACKENDS[assignment.workload.kind].build_launch(wanted, context.environment)
    _refuse_own_files(launch, context.settings, place.files)
    return replace(launch, files={**launch.files, **copies})


def _refuse_foreign(wanted: Wanted, allowance: Allowance) -> None:
    """Raise Unlaunchable for what the operator does not let a workload do here."""
    workload = wanted.assignment.workload
    own = {knob.variable: "" for knob in workload.own if knob.variable}
    refusal = find_refusal(
        allowance,
        wanted.command,
        wanted.working_dir,
        {**own, **workload.environment},
        workload.protect,
        wanted.place.files,
    )
    if refusal:
        raise Unlaunchable(refusal)


def _list_own_files(settings: AgentSettings) -> tuple[Path, ...]:
    """Return the agent's own files and directories, which no training script gets to see."""
    return (settings.work_dir, *settings.hide)


def _refuse_own_files(launch: Launch, settings: AgentSettings, files: Files) -> None:
    """Raise Unlaunchable for a job inside the agent's own directories: they could not be hidden from it."""
    places = [("working_dir", launch.working_dir)] + ([("script", launch.script)] if launch.script else [])
    for named, place in places:
        for own in _list_own_files(settings):
            if files.resolve(place).is_relative_to(own.resolve()):
                raise Unlaunchable(
                    f"The job's {named} {place} lies in {own}, which holds the agent's own files. Move it elsewhere."
                )


def list_written_directories(
    launch: Launch, protect: Iterable[str], home: Path, files: Files = DIRECT
) -> list[Path]:
    """Return the directories that a launch may write to: its own, its script's, `protect`, and its arguments'."""
    directories = [launch.working_dir, *(launch.working_dir / name for name in protect)]
    if launch.script is not None:
        directories.append(launch.script.parent)
    return directories + list_argument_directories(launch.script_arguments, launch.working_dir, home, files)


def protect(launch: Launch, assignment: Assignment, context: NodeContext, place: SessionPlace) -> Protection:
    """Return the mounts for a launch: overlays over what it may write to, nothing where the agent's own files are.

    The session's folder stays real: through it ranks and agent meet. What is written to caches stays with the job.
    """
    settings, account, marker = context.settings, context.account, context.agent_marker
    variables = {**launch.environment, **(account.environment() if account else {})}
    context.layers.begin(assignment.job_id)
    own = context.layers.provide(choose_temporary(), name_folder(marker), account)
    home = Path(variables.get("HOME") or Path.home())
    caches = list_caches(variables, str(home), name_user(variables), own, place.files)
    if context.isolation is None:
        return Protection.none(caches=caches)
    return plan_protection(
        context.isolation,
        list_written_directories(launch, assignment.workload.protect, home, place.files),
        keep=(place.agent_dir.resolve(), own.resolve()),
        owner=context.agent_marker,
        hide=_list_own_files(settings),
        needed=(settings.runtime_script, Path(launch.argv[0]), Path(sys.prefix)),
        account=account,
        files=place.files,
        caches=caches,
        provide=lambda root: context.layers.provide(root, name_scratch(marker)),
    )


def make_order(
    launch: Launch,
    protection: Protection,
    context: NodeContext,
    log_dir: Path,
    folder: Path,
    silence_s: float,
) -> Order:
    """Return what the shim is told: `folder` is the session's, `silence_s` the longest that the agent may be silent."""
    account = context.account
    return Order(
        argv=launch.argv,
        environment={**launch.environment, **(account.environment() if account else {})},
        working_dir=str(launch.working_dir),
        log_folder=str(log_dir),
        mount_plan=protection.plan,
        caches=protection.caches,
        account=account,
        meeting_folder=str(folder),
        silence_s=silence_s,
    )
