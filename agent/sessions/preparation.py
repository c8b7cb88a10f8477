"""Prepares one launch: the operator's rules first, then what the job names, then what may not really change."""

import sys
from collections.abc import Iterable
from pathlib import Path

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.workload import Workload
from agent.backends import BACKENDS
from agent.backends.launch import Launch, SessionPlace, name_working_dir
from agent.errors import Unlaunchable
from agent.files import DIRECT, Files
from agent.guard.isolation import Protection, list_argument_directories, plan_protection
from agent.sessions.context import NodeContext
from agent.settings import AgentSettings
from agent.trust.allowance import find_refusal


def prepare_launch(
    assignment: Assignment, rendezvous: str, place: SessionPlace, context: NodeContext
) -> Launch:
    """Return what is started on this node; nothing that the job names is opened before the operator's rules allow it.

    Raises Unlaunchable for what the operator or this node refuses, AgentStopped when the agent is to stop meanwhile.
    """
    workload, settings = assignment.workload, context.settings
    backend = BACKENDS[workload.kind]
    refusal = find_refusal(
        settings.allow,
        backend.list_words(assignment, rendezvous, place),
        name_working_dir(assignment),
        workload.environment,
        workload.protect,
        place.files,
    )
    if refusal:
        raise Unlaunchable(refusal)
    launch = backend.build_launch(assignment, rendezvous, place, context.environment)
    _refuse_own_files(launch, settings, place.files)
    return launch


def _list_own_files(settings: AgentSettings) -> tuple[Path, ...]:
    """Return the agent's own files and directories, which no training script gets to see."""
    return (settings.work_dir, *settings.hide)


def _refuse_own_files(launch: Launch, settings: AgentSettings, files: Files) -> None:
    """Raise Unlaunchable for a job inside the agent's own directories: they could not be hidden from it."""
    places = [("working_dir", launch.working_dir)] + ([("script", launch.script)] if launch.script else [])
    for field, place in places:
        for own in _list_own_files(settings):
            if files.resolve(place).is_relative_to(own.resolve()):
                raise Unlaunchable(
                    f"The job's {field} {place} lies in {own}, which holds the agent's own files. Move it elsewhere."
                )


def list_written_directories(
    launch: Launch, protect: Iterable[str], home: Path, files: Files = DIRECT
) -> list[Path]:
    """Return the directories that a launch may write to: its own, its script's, `protect`, and its arguments'."""
    directories = [launch.working_dir, *(launch.working_dir / name for name in protect)]
    if launch.script is not None:
        directories.append(launch.script.parent)
    return directories + list_argument_directories(launch.script_arguments, launch.working_dir, home, files)


def shelter(launch: Launch, workload: Workload, context: NodeContext, place: SessionPlace) -> Protection:
    """Return the mounts for a launch: overlays over what it may write to, nothing where the agent's own files are.

    The session's folder stays real: through it ranks and agent meet.
    """
    if context.isolation is None:
        return Protection.none()
    settings, account = context.settings, context.account
    home = Path(account.home) if account is not None else Path.home()
    return plan_protection(
        context.isolation,
        list_written_directories(launch, workload.protect, home, place.files),
        keep=(place.session_dir.resolve(),),
        owner=context.agent_marker,
        hide=_list_own_files(settings),
        needed=(settings.runtime_script, Path(launch.argv[0]), Path(sys.prefix)),
        account=account,
        files=place.files,
    )
