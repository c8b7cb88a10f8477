"""What every session of one agent shares."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from advisor.protocol.measured.messages import AgentRegistered
from agent.client import ServerClient
from agent.devices.gpus import Gpus
from agent.guard.account import Account
from agent.guard.isolation import Isolation
from agent.sessions.delivery import Delivery
from agent.settings import AgentSettings


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
