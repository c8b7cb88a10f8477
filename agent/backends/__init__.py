"""How each framework's training processes are started: one file per backend, chosen by the workload's kind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.settling import settle
from advisor.protocol.training.workload import WorkloadKind
from agent.backends.command import build_launch as build_command
from agent.backends.command import read_filled
from agent.backends.injection import read_typed
from agent.backends.launch import Launch, SessionPlace, Wanted
from agent.backends.paddle import build_launch as build_paddle
from agent.backends.pytorch import build_launch as build_pytorch


@dataclass(frozen=True)
class Backend:
    """How one kind of workload is started and listened to."""

    read: Callable[[Assignment, str, SessionPlace], Wanted]
    """Settled assignment, rendezvous and place of the session -> what is to be started."""
    build_launch: Callable[[Wanted, Mapping[str, str]], Launch]
    """That and the agent's environment -> how it is started on this node."""
    reads_output: bool
    """Results are read from what the program writes; else the runtime in front of the script tells them."""


BACKENDS: Mapping[WorkloadKind, Backend] = {
    WorkloadKind.PYTORCH: Backend(read_typed, build_pytorch, reads_output=False),
    WorkloadKind.COMMAND: Backend(read_filled, build_command, reads_output=True),
    WorkloadKind.PADDLE: Backend(read_filled, build_paddle, reads_output=True),
}
"""The backend of every kind of workload."""


def read_assignment(assignment: Assignment, rendezvous: str, place: SessionPlace) -> Wanted:
    """Return what an assignment wants started, with its own knobs in its words; nothing that it names is looked at."""
    settled = assignment.model_copy(update={"workload": settle(assignment.workload, assignment.cold)})
    return BACKENDS[assignment.workload.kind].read(settled, rendezvous, place)
