"""Says exactly what an agent would start for a workload on this machine, before anything is started."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from advisor.protocol.base import Message
from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.launch_command import choose_injection
from advisor.protocol.training.workload import Injection, Workload
from agent.backends import BACKENDS, read_assignment
from agent.backends.launch import SessionPlace
from agent.backends.own_knobs import place_copies
from agent.backends.rendezvous import offer_rendezvous
from agent.guard.isolation import (
    choose_targets,
    detect_isolation,
    list_scratch_roots,
)
from agent.sessions.preparation import list_written_directories
from agent.settings import RUNTIME_SCRIPT

_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|AUTH|COOKIE|(^|_)KEY", re.IGNORECASE)
_PLACE = SessionPlace(
    Path("/SESSION/ranks"),
    Path("/SESSION/s"),
    agent_marker="AGENT",
    session_marker="SESSION",
    runtime_script=RUNTIME_SCRIPT,
)
"""Stands for what is new in every session."""
_INJECTIONS = {
    Injection.LAUNCHER: "stands in front of the script (injection: launcher)",
    Injection.ENVIRONMENT: "gets into the ranks through PYTHONPATH (injection: environment)",
    Injection.NONE: "is started by the script itself, with fleet_advisor.start() (injection: none)",
}


class Preview(Message):
    """What an agent would start."""

    argv: tuple[str, ...]
    """The words of the process."""
    working_dir: str
    """Where it starts."""
    injection: Injection
    """How the runtime gets into the ranks."""
    environment: dict[str, str]
    """Variables that are added to the caller's own, or changed; the values of secrets are left out."""
    removed: tuple[str, ...]
    """Variables of the caller's that the process does not see."""
    protected: tuple[str, ...]
    """Directories in which nothing that is written stays."""
    protection: str
    """A sentence: how files are protected here, or why they are not."""
    warnings: tuple[str, ...]
    """What may not be as it seems."""


def preview_launch(workload: Workload, environment: Mapping[str, str], work_dir: Path) -> Preview:
    """Return what an agent with that environment would start, on a single node.

    Raises Unlaunchable when nothing can be started. `work_dir` is where overlays would have their scratch.
    """
    assignment = Assignment(
        session_id="SESSION", generation=1, job_id="JOB", node_rank=0, nnodes=1, workload=workload
    )
    wanted, _ = place_copies(read_assignment(assignment, offer_rendezvous("127.0.0.1"), _PLACE))
    launch = BACKENDS[workload.kind].build_launch(wanted, environment)
    roots = list_scratch_roots(work_dir)
    roots[0].mkdir(parents=True, exist_ok=True)
    isolation = detect_isolation(roots)
    targets, too_broad = choose_targets(list_written_directories(launch, workload.protect, Path.home()))
    added = {
        name: "(not shown)" if _SECRET.search(name) else value
        for name, value in sorted(launch.environment.items())
        if environment.get(name) != value
    }
    return Preview(
        argv=launch.argv,
        working_dir=str(launch.working_dir),
        injection=choose_injection(workload.injection, wanted.command),
        environment=added,
        removed=tuple(sorted(environment.keys() - launch.environment.keys())),
        protected=tuple(map(str, targets)) if isolation.works else (),
        protection=isolation.because,
        warnings=(
            *launch.warnings,
            *(
                f"{directory} is too broad to protect: start in a directory of its own."
                for directory in too_broad
            ),
        ),
    )


def describe_preview(preview: Preview) -> str:
    """Return the preview as people read it."""
    lines = [
        f"Command:   {shlex.join(preview.argv)}",
        f"Directory: {preview.working_dir}",
        f"Runtime:   {_INJECTIONS[preview.injection]}",
        "Variables, added to yours or changed (SESSION, AGENT and ports differ from one launch to the next):",
        *(f"  {name}={shlex.quote(value)}" for name, value in preview.environment.items()),
    ]
    if preview.removed:
        lines.append(f"Variables that it does not see: {', '.join(preview.removed)}")
    lines.append(f"Files:     {preview.protection}")
    lines += [f"  {directory}: what is written here vanishes" for directory in preview.protected]
    lines += [f"Note: {sentence}" for sentence in preview.warnings]
    return "\n".join(lines)
