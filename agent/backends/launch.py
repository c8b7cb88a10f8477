"""What every backend starts from: the launch it builds, the session's place on the node, the ranks' environment."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.launch_command import Command
from advisor.protocol.training.settling import list_unset, list_variables
from agent.backends.rendezvous import find_interface, split_rendezvous
from agent.errors import Unlaunchable
from agent.files import DIRECT, Files
from agent.guard.processes import AGENT_MARKER, SESSION_MARKER
from agent.runtime.link.environment import BASE, LOOKS_ONLY

_RENDEZVOUS_VARIABLE = re.compile(
    r"PET_(NNODES|NODE_RANK|STANDALONE|RDZV_\w+|MASTER_\w+|MAX_RESTARTS|LOCAL_ADDR)"
    r"|(LOCAL_|GROUP_|NODE_)?RANK|(LOCAL_)?WORLD_SIZE|NNODES|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+"
)
_SECRET_OR_OURS = re.compile(r"ADVISOR_\w+")


@dataclass(frozen=True)
class Launch:
    """What the shim starts."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    working_dir: Path
    script: Path | None
    """The script that trains; None for a module, or where no backend can tell."""
    script_arguments: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    """Sentences for the log."""
    files: Mapping[str, str] = field(default_factory=dict)
    """What is laid out in the agent's part of the session's folder: the text of each file by its name there."""


@dataclass(frozen=True)
class SessionPlace:
    """Where on this node the session lives."""

    session_dir: Path
    """The ranks' own folder."""
    control: Path
    """Unix socket of the control channel, in the agent's part of the session's folder."""
    agent_marker: str
    session_marker: str
    runtime_script: Path
    files: Files = DIRECT
    """How what the job names is looked at."""

    @property
    def agent_dir(self) -> Path:
        """Where the agent lays out what the ranks read; only it can write there."""
        return self.control.parent


@dataclass(frozen=True)
class Wanted:
    """What is to be started on this node: nothing behind it reads the job's command or its own knobs again."""

    assignment: Assignment
    """With the session's own knobs in its workload."""
    place: SessionPlace
    places: Mapping[str, str]
    """What placeholders stand for, by their names."""
    command: Command
    """With every value and place in its words; what the operator is asked about, and then started."""

    @property
    def working_dir(self) -> Path:
        """The workload's working directory, whether it exists or not."""
        return Path(self.assignment.workload.working_dir).absolute()

    def find_working_dir(self) -> Path:
        """Return the workload's working directory on this node; raises Unlaunchable where there is none."""
        found = self.place.files.find_directory(self.working_dir)
        if found is None or not found.is_searchable:
            raise Unlaunchable(
                f"The working directory {self.working_dir} does not exist on this node, or its scripts' user may not "
                "enter it. Give every node the same files at the same place, or submit the job with another "
                "working_dir."
            )
        return self.working_dir


def list_places(assignment: Assignment, rendezvous: str) -> dict[str, str]:
    """Return what placeholders say of the nodes, by their names."""
    host, port = split_rendezvous(rendezvous)
    return {
        "master_addr": host,
        "master_port": str(port),
        "nodes": str(assignment.nnodes),
        "node_rank": str(assignment.node_rank),
    }


def build_environment(wanted: Wanted, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the processes' environment: the agent's, the workload's, cold knobs, and the session's own variables.

    Several nodes keep gloo off interfaces that others cannot reach (docker0, a management network). NCCL chooses for
    itself, as it does without us: the baseline is the user's own network.
    """
    assignment = wanted.assignment
    unset = list_unset(assignment.workload.own, assignment.cold)
    inherited = {name: text for name, text in _inherit(environment).items() if name not in unset}
    own = list_variables(assignment.workload.own, assignment.cold)
    variables = {**inherited, **assignment.workload.environment, **own}
    # torchrun leaves a folder in the temporary one for each launch that is ended; the session's own goes with it.
    variables.setdefault("PET_LOG_DIR", str(wanted.place.session_dir / "torchrun"))
    if assignment.nnodes > 1 and (interface := find_interface(wanted.places["master_addr"])) is not None:
        variables.setdefault("GLOO_SOCKET_IFNAME", interface)
    variables |= CATALOGUE.list_variables(_list_cold(assignment))
    return variables | _describe_session(assignment, wanted.place)


def _list_cold(assignment: Assignment) -> Changes:
    """Return what the ranks are launched with: the session's own, and the workload's where that leaves it open."""
    return Changes({**CATALOGUE.keep_cold(assignment.workload.base), **assignment.cold})


def _inherit(environment: Mapping[str, str]) -> dict[str, str]:
    """The agent's environment without its secrets, and without a rendezvous it may itself have been started in."""
    return {
        name: value
        for name, value in environment.items()
        if not _SECRET_OR_OURS.fullmatch(name) and not _RENDEZVOUS_VARIABLE.fullmatch(name)
    }


def _describe_session(assignment: Assignment, place: SessionPlace) -> dict[str, str]:
    variables = {
        "ADVISOR_TUNING": "1",
        "ADVISOR_SESSION_DIR": str(place.session_dir),
        "ADVISOR_CONTROL": str(place.control),
        "ADVISOR_COLD": json.dumps(_list_cold(assignment)),
        SESSION_MARKER: place.session_marker,
        AGENT_MARKER: place.agent_marker,
    }
    if assignment.looks_only:
        variables[LOOKS_ONLY] = "1"
    if assignment.workload.base:
        variables[BASE] = json.dumps(assignment.workload.base)
    if assignment.workload.samples_per_step is not None:
        variables["ADVISOR_SAMPLES_PER_STEP"] = str(assignment.workload.samples_per_step)
    return variables
