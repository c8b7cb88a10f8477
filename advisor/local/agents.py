"""The agents of local mode: as many nodes as the job asks for, all on this machine."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from advisor.local.process import PYTHON, LocalProcess, ProcessDied
from advisor.local.server import LocalModeFailed, LocalServer, failure_of

if TYPE_CHECKING:  # It loads while agents start.
    from advisor.client import Client

AGENT_COMMAND = (*PYTHON, "-m", "agent")
"""`advisor-agent`, also where its script is not installed. The agent is never imported by the server's side."""

AGENT_CONFIG = "ADVISOR_AGENT_CONFIG"
"""The variable that names the configuration of this machine's agents: who may start what is in it."""

_START_S = 90.0
_STOP_S = 30.0
"""An agent waits for its training processes to be gone and says so to the server: that takes a while."""
_POLL_S = 0.2


@dataclass(frozen=True)
class AgentPlace:
    """Where an agent is started: on this machine as it is, or on a node of a testbed."""

    name: str
    """Its name on the server and that of its work directory."""
    server_url: str
    """Where it finds the server."""
    prefix: tuple[str, ...] = ()
    """Words in front of its command."""
    options: tuple[str, ...] = ()
    """Further options of `advisor-agent run`."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of its own."""


def places_here(server_url: str, count: int) -> tuple[AgentPlace, ...]:
    """Return places for `count` agents on this machine as it is."""
    return tuple(AgentPlace(f"local-{number}", server_url) for number in range(1, count + 1))


class HeldAgents:
    """Agents that are up, and register when they are told to: a server serves the first job that it finds."""

    def __init__(self, agents: Mapping[str, LocalProcess]) -> None:
        """By the names of their places."""
        self._agents = agents

    def let_go(self, server: LocalServer, tell: Callable[[str], None]) -> Callable[[], None]:
        """Let them serve; return once all have registered, with a check that they all still run.

        Raises `LocalModeFailed` with the end of the log of an agent that does not come up; so does the check when
        one has stopped.
        """
        started_at = datetime.now(UTC)
        for agent in self._agents.values():
            agent.let_go()
        self._await_registered(server, started_at)
        if count := len(self._agents):
            tell(f"{count} agent{'s are' if count > 1 else ' is'} ready on this machine.")
        return self._check

    def _check(self) -> None:
        for agent in self._agents.values():
            try:
                agent.check()
            except ProcessDied as died:
                raise failure_of(died, "Run `advisor-agent doctor` to see what it lacks.") from died

    def _await_registered(self, server: LocalServer, started_at: datetime) -> None:
        from advisor.client import Client

        deadline = time.monotonic() + _START_S
        with Client(server.url, server.token, patience_s=0) as client:
            while missing := self._agents.keys() - _seen_since(client, started_at):
                self._check()
                server.check()
                if time.monotonic() > deadline:
                    raise LocalModeFailed(
                        f"{', '.join(sorted(missing))} did not register with the server within {_START_S:.0f} s.",
                        f"The agents' logs are beside {next(iter(self._agents.values())).log_path}.",
                        "\n".join(agent.log_tail(5) for agent in self._agents.values()),
                    )
                time.sleep(_POLL_S)


@contextmanager
def held_agents(
    token_file: Path, data_dir: Path, places: Sequence[AgentPlace], environment: Mapping[str, str]
) -> Iterator[HeldAgents]:
    """Start an agent at each place, beside the server's own start; stop them all when the context ends.

    `token_file`: the agent token, which need not be there before they are let go.
    """
    agents: dict[str, LocalProcess] = {}
    try:
        for place in places:
            agents[place.name] = start_agent(place, token_file, data_dir, environment)
        yield HeldAgents(agents)
    finally:
        for agent in agents.values():
            agent.ask_to_stop()
        for agent in agents.values():
            agent.stop(_STOP_S)


@contextmanager
def local_agents(
    server: LocalServer,
    data_dir: Path,
    places: Sequence[AgentPlace],
    environment: Mapping[str, str],
    tell: Callable[[str], None],
) -> Iterator[Callable[[], None]]:
    """Keep an agent running at each place for as long as the context lasts; yields a check that they all do.

    Raises `LocalModeFailed`, and so does the check.
    """
    with held_agents(server.agent_token_file, data_dir, places, environment) as held:
        yield held.let_go(server, tell)


def training_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for agents: the user's, and this Python's scripts as a last resort on the path.

    The user's own torchrun comes first; ours serves when the virtual environment is not activated.
    """
    ours = {
        "ADVISOR_AGENT_TOKEN", "ADVISOR_AGENT_TOKEN_FILE", "ADVISOR_TOKEN", "ADVISOR_TOKEN_FILE", "ADVISOR_JOIN_SECRET",
    }  # fmt: skip
    kept = {name: value for name, value in environment.items() if name not in ours}
    kept["PATH"] = os.pathsep.join([kept.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    return kept


def start_agent(
    place: AgentPlace, token_file: Path | None, data_dir: Path, environment: Mapping[str, str]
) -> LocalProcess:
    """Start an agent that is held. `token_file`: None where its place's environment has the token."""
    work_dir = data_dir / "agents" / place.name
    options = (
        "--server",
        place.server_url,
        "--name",
        place.name,
        *(() if token_file is None else ("--token-file", str(token_file))),
        # Without rules of its operator, a user who tunes here could as well type the command.
        *(() if environment.get(AGENT_CONFIG) else ("--allow-launcher", "*", "--allow-root", "/")),
        "--hide",
        str(data_dir),  # the administrator's token and the database lie there
        "--await-word",
        "--pool",
        "",  # its one job names none, whatever this machine's environment says
        "--ends-in",
        "never",  # the command ends with the allocation, and goes on where it was in the next one
    )
    return LocalProcess(
        f"agent {place.name}",
        [*place.prefix, *AGENT_COMMAND, "run", *options, "--work-dir", str(work_dir), *place.options],
        data_dir / "logs" / f"agent-{place.name}.log",
        {**training_environment(environment), **place.environment},
        held=True,
    )


def _seen_since(client: "Client", started_at: datetime) -> set[str]:
    """Names of agents that spoke since then: a name may be known from an earlier command."""
    return {
        agent.name for agent in client.agents() if agent.last_seen_at and agent.last_seen_at >= started_at
    }
