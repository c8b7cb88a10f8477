"""What one launch may not really change on this node, and what of the agent's it may not see."""

import sys
from collections.abc import Iterable
from pathlib import Path

from advisor.protocol.training.workload import Workload
from agent.backends.launch import Launch
from agent.errors import Unlaunchable
from agent.guard.isolation import Protection, list_argument_directories, plan_protection
from agent.sessions.context import NodeContext
from agent.settings import AgentSettings


def list_own_files(settings: AgentSettings) -> tuple[Path, ...]:
    """Return the agent's own files and directories, which no training script gets to see."""
    return (settings.work_dir, *settings.hide)


def refuse_own_files(launch: Launch, settings: AgentSettings) -> None:
    """Raise Unlaunchable for a job inside the agent's own directories: they could not be hidden from it."""
    places = [("working_dir", launch.working_dir)] + ([("script", launch.script)] if launch.script else [])
    for field, place in places:
        for own in list_own_files(settings):
            if place.resolve().is_relative_to(own.resolve()):
                raise Unlaunchable(
                    f"The job's {field} {place} lies in {own}, which holds the agent's own files. Move it elsewhere."
                )


def list_written_directories(launch: Launch, protect: Iterable[str], home: Path) -> list[Path]:
    """Return the directories that a launch may write to: its own, its script's, `protect`, and its arguments'."""
    directories = [launch.working_dir, *(launch.working_dir / name for name in protect)]
    if launch.script is not None:
        directories.append(launch.script.parent)
    return directories + list_argument_directories(launch.script_arguments, launch.working_dir, home)


def shelter(launch: Launch, workload: Workload, context: NodeContext, ranks_folder: Path) -> Protection:
    """Return the mounts for a launch: overlays over what it may write to, nothing where the agent's own files are.

    `ranks_folder` stays real: through it ranks and agent meet.
    """
    if context.isolation is None:
        return Protection.none()
    settings = context.settings
    return plan_protection(
        context.isolation,
        list_written_directories(launch, workload.protect, Path.home()),
        keep=(ranks_folder.resolve(),),
        owner=context.agent_marker,
        hide=list_own_files(settings),
        needed=(settings.runtime_script, Path(launch.argv[0]), Path(sys.prefix)),
        account=context.account,
    )
