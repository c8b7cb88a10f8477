"""How each framework's training processes are started: one file per backend, chosen by the workload's kind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.workload import WorkloadKind
from agent.backends.command import build_launch as build_command
from agent.backends.launch import Launch, SessionPlace
from agent.backends.paddle import build_launch as build_paddle
from agent.backends.pytorch import build_launch as build_pytorch


@dataclass(frozen=True)
class Backend:
    """How one kind of workload is started and listened to."""

    build_launch: Callable[[Assignment, str, SessionPlace, Mapping[str, str]], Launch]
    """Assignment, rendezvous, place of the session and the agent's environment -> what is started on this node."""
    reads_output: bool
    """Results are read from what the program writes; else the runtime in front of the script tells them."""


BACKENDS: Mapping[WorkloadKind, Backend] = {
    WorkloadKind.PYTORCH: Backend(build_pytorch, reads_output=False),
    WorkloadKind.COMMAND: Backend(build_command, reads_output=True),
    WorkloadKind.PADDLE: Backend(build_paddle, reads_output=True),
}
"""The backend of every kind of workload."""
