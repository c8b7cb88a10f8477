"""How each framework's training processes are started: one file per backend, chosen by the workload's kind."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from advisor.protocol.measured.messages import Assignment
from advisor.protocol.training.workload import WorkloadKind
from agent.backends.command import build_launch as build_command
from agent.backends.command import list_words as list_command_words
from agent.backends.injection import list_words as list_pytorch_words
from agent.backends.launch import Launch, SessionPlace
from agent.backends.paddle import build_launch as build_paddle
from agent.backends.paddle import list_words as list_paddle_words
from agent.backends.pytorch import build_launch as build_pytorch


@dataclass(frozen=True)
class Backend:
    """How one kind of workload is started and listened to."""

    list_words: Callable[[Assignment, str, SessionPlace], tuple[str, ...]]
    """The job's command with its placeholders filled: what the operator is asked about."""
    build_launch: Callable[[Assignment, str, SessionPlace, Mapping[str, str]], Launch]
    """Assignment, rendezvous, place of the session and the agent's environment -> what is started on this node."""
    reads_output: bool
    """Results are read from what the program writes; else the runtime in front of the script tells them."""


BACKENDS: Mapping[WorkloadKind, Backend] = {
    WorkloadKind.PYTORCH: Backend(list_pytorch_words, build_pytorch, reads_output=False),
    WorkloadKind.COMMAND: Backend(list_command_words, build_command, reads_output=True),
    WorkloadKind.PADDLE: Backend(list_paddle_words, build_paddle, reads_output=True),
}
"""The backend of every kind of workload."""
