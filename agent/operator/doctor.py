"""Examines whether this node can serve as an agent, and says what to do where it cannot."""

import os
import shutil
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from advisor.protocol.nodes.cluster import Finding
from agent.devices.gpus import Gpus
from agent.devices.hardware import describe_node, find_version
from agent.devices.network import judge_network
from agent.errors import BadConfiguration
from agent.guard.account import find_account
from agent.guard.blind_spot import find_blind_spot
from agent.guard.isolation import detect_isolation, list_scratch_roots
from agent.sessions.spool import list_reports, locate_reports, read_reason


def examine(
    work_dir: Path, server_url: str | None, gpus: Gpus, environment: Mapping[str, str], run_as: str = ""
) -> list[Finding]:
    """Look at everything an agent needs; changes nothing but the work directory's scratch.

    `run_as` is the user that scripts would run as, where that is another one than the agent's.
    """
    findings = [
        _examine_node(gpus),
        _examine_network(gpus, environment),
        _examine_torch(environment),
        _examine_guard(run_as),
        _examine_files(work_dir),
        _examine_reports(*locate_reports(work_dir)),
    ]
    if server_url:
        findings.append(_examine_server(server_url))
    return findings


def _examine_node(gpus: Gpus) -> Finding:
    node = describe_node(gpus)
    return Finding("node", not node.warning, node.describe())


def _examine_network(gpus: Gpus, environment: Mapping[str, str]) -> Finding:
    if not gpus.list_devices():
        return Finding("network", True, "Without GPUs nothing communicates over NCCL.")
    found = judge_network(environment)
    return Finding("network", not found, " ".join(found) or "Nothing keeps NCCL from this node's network.")


def _examine_torch(environment: Mapping[str, str]) -> Finding:
    found = shutil.which("torchrun", path=environment.get("PATH", os.defpath))
    version = find_version("torch")
    if found:
        return Finding("torch", True, f"torchrun is {found}.")
    if version:
        return Finding(
            "torch", True, f"torchrun is not on PATH; torch {version} of {sys.executable} is used instead."
        )
    return Finding(
        "torch",
        False,
        "No torchrun on PATH and no torch beside the agent. Install torch 2.1 or newer on this node, then activate "
        "that environment before the agent starts, or give its torchrun's full path in each job's command.",
    )


def _examine_guard(run_as: str) -> Finding:
    """The guard finds ranks by walking /proc, and by the environment they were started with."""
    try:
        blind_spot = find_blind_spot(find_account(run_as) if run_as else None)
    except BadConfiguration as error:
        return Finding("guard", False, str(error))
    return Finding(
        "guard", not blind_spot, blind_spot or "Every process of a session can be found and killed."
    )


def _examine_files(work_dir: Path) -> Finding:
    roots = list_scratch_roots(work_dir)
    roots[0].mkdir(parents=True, exist_ok=True)
    isolation = detect_isolation(roots)
    return Finding("files", isolation.works, isolation.because)


def _examine_reports(spool: Path, quarantine: Path) -> Finding:
    """Measurements that the server has not taken: they wait, or were set aside for a person to decide about."""
    waiting, aside = list_reports(spool), list_reports(quarantine)
    sentence = f"{len(waiting)} measurements wait to be handed in."
    if not aside:
        return Finding("reports", True, sentence)
    return Finding(
        "reports",
        False,
        f"{sentence} {len(aside)} were set aside in {quarantine}, each beside its reason. "
        f"{aside[0].name}: {read_reason(aside[0])} Once that is mended move them back to {spool}, and "
        "they are handed in again; or delete them.",
    )


def _examine_server(server_url: str) -> Finding:
    parts = urlsplit(server_url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=5).close()
    except OSError as error:
        return Finding(
            "server", False, f"Nothing answers at {server_url} ({error}): check the URL and that it runs."
        )
    return Finding("server", True, f"{server_url} accepts connections.")
