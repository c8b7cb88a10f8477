"""The checks of `advisor doctor`; each finds something out and says what to do where it is wrong."""

import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

from advisor.cli.connection import token_of
from advisor.client import ApiProblem, Client, ServerUnreachable
from advisor.data_dir import NotPrivate, make_private
from advisor.local.agents import AGENT_COMMAND, training_environment
from advisor.local.record import running_server
from advisor.local.testbed import unavailable_because
from advisor.protocol.base import Message
from advisor.protocol.nodes.cluster import Finding
from advisor.protocol.reading import Unreadable, read_document
from advisor.protocol.training.inherited import list_inherited
from advisor.protocol.views import JobQuery

_PATIENCE_S = 120


class Status(StrEnum):
    """How a check came out; only `fail` makes tuning impossible."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Check(Message):
    """One finding."""

    name: str
    status: Status
    finding: str
    remedy: str = ""


def check_all(environment: Mapping[str, str], data_dir: Path, launcher: str) -> list[Check]:
    """Return every finding about this machine."""
    return [
        check_python(),
        check_launcher(launcher, environment),
        check_torch(launcher, environment),
        check_port(),
        check_data_dir(data_dir),
        check_environment(environment),
        *check_agent(environment),
        check_testbed(),
        check_server(environment, data_dir),
    ]


def check_python() -> Check:
    """Which Python runs server and agents; your training may have another."""
    return _ok("Python", f"{platform.python_version()} in {sys.executable}")


def check_torch(launcher: str, environment: Mapping[str, str]) -> Check:
    """Whether the Python that trains, the one beside the launcher, has torch; asked in a process of its own."""
    found_launcher = shutil.which(launcher, path=training_environment(environment)["PATH"])
    beside = Path(found_launcher).parent / "python" if found_launcher else Path(sys.executable)
    python = str(beside if beside.exists() else sys.executable)
    program = "import torch; print(torch.__version__)"
    try:
        found = subprocess.run(
            [python, "-c", program], capture_output=True, text=True, timeout=_PATIENCE_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _fail(
            "torch", f"{python} cannot be run: {error}", "Activate the environment that you train in."
        )
    if found.returncode:
        return _fail(
            "torch", f"{python} has no torch", "Activate the environment that you train in, or install torch."
        )
    return _ok("torch", f"{found.stdout.strip()} in {python}")


def check_launcher(launcher: str, environment: Mapping[str, str]) -> Check:
    """Whether the launcher is on the path that agents will have."""
    if path := shutil.which(launcher, path=training_environment(environment)["PATH"]):
        return _ok("launcher", path)
    return _fail("launcher", f"{launcher} is not on the PATH", "Activate the environment that you train in.")


def check_port() -> Check:
    """Whether a port of the loopback can be listened on."""
    try:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            probe.listen()
    except OSError as error:
        return _fail(
            "ports", f"no free port on 127.0.0.1: {error}", "Check `ip addr show lo` and your limits."
        )
    return _ok("ports", "free ones on 127.0.0.1")


def check_data_dir(data_dir: Path) -> Check:
    """Whether the data directory can be written."""
    try:
        make_private(data_dir)
        with tempfile.TemporaryFile(dir=data_dir):
            free = shutil.disk_usage(data_dir).free
    except NotPrivate as error:
        return _fail("data directory", str(error), error.hint)
    except OSError as error:
        return _fail(
            "data directory", f"{data_dir}: {error}", "Set ADVISOR_DATA_DIR to a directory of yours."
        )
    if free < 2**30:
        return Check(
            name="data directory",
            status=Status.WARN,
            finding=f"{data_dir} has {free / 2**20:.0f} MiB left",
            remedy="Trials write what your script writes, beside it: make room, or set ADVISOR_DATA_DIR.",
        )
    return _ok("data directory", f"{data_dir}, {free / 2**30:.0f} GiB free")


def check_environment(environment: Mapping[str, str]) -> Check:
    """Which variables a training inherits that bear on its speed, and what each does."""
    found = list_inherited(environment)
    told = " ".join(f"{each.name}: {each.sentence}" for each in found)
    if not any(each.may_go for each in found):
        return _ok("environment", told or "nothing that trainings inherit bears on their speed")
    return Check(
        name="environment",
        status=Status.WARN,
        finding=told,
        remedy="Find out what a training gains without them: advisor tune --inherited …",
    )


def check_agent(environment: Mapping[str, str]) -> list[Check]:
    """What the agent finds out about itself: isolation of trials, devices. It runs in a process of its own."""
    command = [*AGENT_COMMAND, "doctor", "--json"]
    try:
        found = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            check=False,
            env=training_environment(environment),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [_fail("agent", f"`advisor-agent doctor` does not answer: {error}", "Reinstall the agent.")]
    with suppress(Unreadable):
        return [_show_agents(finding) for finding in read_document(tuple[Finding, ...], found.stdout)]
    why = found.stderr.strip().splitlines()[-1:] or ["it found nothing"]
    return [
        _fail(
            "agent",
            f"`advisor-agent doctor` does not work: {why[0]}",
            "Install the agent's packages: pip install 'fleet-advisor[agent]'.",
        )
    ]


def _show_agents(finding: Finding) -> Check:
    status = Status.OK if finding.is_fine else Status.WARN
    return Check(name=f"agent's {finding.name}", status=status, finding=finding.sentence)


def check_testbed() -> Check:
    """Whether `--testbed` can make nodes with shaped links here; found out by making two and removing them."""
    if sentence := unavailable_because():
        return Check(
            name="testbed",
            status=Status.WARN,
            finding=sentence,
            remedy="Nothing, unless you want --testbed: tuning itself does not need it.",
        )
    return _ok(
        "testbed", "nodes with shaped links can be made here: advisor tune --testbed nodes=2,rate=1gbit …"
    )


def check_server(environment: Mapping[str, str], data_dir: Path) -> Check:
    """Whether the server that commands would use answers, and accepts the token."""
    record = running_server(data_dir)
    url = environment.get("ADVISOR_URL") or (record.url if record else None)
    if url is None:
        return _ok("server", "none runs and ADVISOR_URL is not set: `advisor tune` starts its own")
    try:
        token = token_of(environment)
        if not environment.get("ADVISOR_URL") and token is None:
            token = (data_dir / "admin-token").read_text().strip()
        with Client(url, token, timeout_s=5.0, patience_s=0) as client:
            client.list_jobs(JobQuery(limit=1))
    except ServerUnreachable as error:
        return _fail("server", str(error), "Check ADVISOR_URL, and that the server runs.")
    except ApiProblem as problem:
        return _fail("server", f"{url}: {problem.detail}", problem.hint or "Check ADVISOR_TOKEN.")
    except OSError as error:
        return _fail("server", f"{url}: its token cannot be read: {error}", "Set ADVISOR_TOKEN.")
    return _ok("server", f"{url} answers")


def _ok(name: str, finding: str) -> Check:
    return Check(name=name, status=Status.OK, finding=finding)


def _fail(name: str, finding: str, remedy: str) -> Check:
    return Check(name=name, status=Status.FAIL, finding=finding, remedy=remedy)
