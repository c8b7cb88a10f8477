"""Prepares one launch: the operator's rules, what the job names, what may not really change, and the ranks' folder."""

import hashlib
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from advisor.protocol.measured.messages import AgentRegistered, Assignment
from advisor.protocol.training.workload import Workload
from agent.backends import BACKENDS
from agent.backends.launch import Launch, SessionPlace, name_working_dir
from agent.backends.own_knobs import settle_assignment
from agent.client import ServerClient
from agent.devices.gpus import Gpus
from agent.errors import Unlaunchable
from agent.files import DIRECT, Files
from agent.guard.account import Account
from agent.guard.isolation import Isolation, Protection, list_argument_directories, plan_protection
from agent.sessions.delivery import Delivery
from agent.settings import AgentSettings
from agent.trust.allowance import find_refusal


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


def prepare_launch(
    assignment: Assignment, rendezvous: str, place: SessionPlace, context: NodeContext
) -> Launch:
    """Return what is started on this node; nothing that the job names is opened before the operator's rules allow it.

    Raises Unlaunchable for what the operator or this node refuses, AgentStopped when the agent is to stop meanwhile.
    """
    assignment = settle_assignment(assignment, place)
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


def protect(launch: Launch, workload: Workload, context: NodeContext, place: SessionPlace) -> Protection:
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


_LONGEST_SOCKET = 107
_BELOW = len("/adv-0123456789-12345678/s")
"""What a socket's path is longer than the temporary folder's."""


class RankFolder:
    """Made for one session, private to the user that its scripts run as."""

    def __init__(self, agent_marker: str, account: Account | None) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=_prefix(agent_marker), dir=choose_temporary()))
        if account is not None:
            account.give(str(self.path))

    def remove(self) -> None:
        """Delete the folder with everything that the ranks put into it."""
        shutil.rmtree(self.path, ignore_errors=True)


def remove_leftover_folders(agent_marker: str) -> None:
    """Delete what sessions of an agent that was killed left behind."""
    for folder in choose_temporary().glob(f"{_prefix(agent_marker)}*"):
        shutil.rmtree(folder, ignore_errors=True)


def choose_temporary() -> Path:
    """Return where such folders lie: the temporary folder, or /tmp where a socket's path in that one would be too long.

    A socket's path has 107 bytes at most on Linux, and the temporary folders of some clusters have long names.
    """
    wanted = Path(tempfile.gettempdir())
    return wanted if len(os.fsencode(wanted)) + _BELOW <= _LONGEST_SOCKET else Path("/tmp")  # noqa: S108


def _prefix(agent_marker: str) -> str:
    return f"adv-{hashlib.sha256(agent_marker.encode()).hexdigest()[:10]}-"
