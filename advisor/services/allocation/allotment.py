"""The agents, given away and kept gang by gang: a job gets its whole gang or none of it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from advisor.protocol.nodes.cluster import RACK
from advisor.protocol.nodes.testbed import Testbed
from advisor.services.allocation.demand import Asked, Demand, Place, Supply, find_kind
from advisor.services.allocation.waiting import explain_wait

_Group = tuple[Supply, ...]
"""Agents any of which can hold a session together."""


class Allotment:
    """Ask it for one gang after the other, in the order in which jobs come.

    A job that has to wait, and that busy agents could serve later, keeps all agents that it could use: later jobs get
    none of them, so that small jobs never starve a large one.
    """

    def __init__(self, agents: Sequence[Supply]) -> None:
        self._agents = agents
        self._pools = {agent.node.pool for agent in agents}
        self._idle = {agent.id for agent in agents if agent.is_idle}
        self._kept: dict[str, str] = {}
        """Agent -> the first job that it is kept for."""
        self._waiting: defaultdict[tuple[Testbed | None, str], int] = defaultdict(int)
        """Of a testbed and a pool -> how many jobs wait that came before."""
        self._admitted: dict[Asked, list[Supply]] = {}
        self._groups: dict[tuple[Asked, int], list[_Group]] = {}

    def place(self, demand: Demand) -> Place:
        """Give a job its gang, or keep what it waits for and say what that is."""
        groups = self._group(demand)
        gang = self._choose(demand, groups)
        if gang and demand.is_ready:
            found = tuple(agent.id for agent in gang)
            self._idle.difference_update(found)
            return Place(found)
        if gang:
            self._keep(demand.job_id, gang)
            return Place()
        key = demand.asked.testbed, demand.asked.pool
        waits = self._explain(demand, groups, self._waiting[key])
        large = [group for group in groups if len(group) >= demand.asked.nodes]
        self._waiting[key] += bool(large)
        for group in large:
            self._keep(demand.job_id, group)
        return Place(waits=waits)

    def _keep(self, job_id: str, agents: Iterable[Supply]) -> None:
        for agent in agents:
            self._kept.setdefault(agent.id, job_id)

    def _admit(self, asked: Asked) -> list[Supply]:
        if asked not in self._admitted:
            self._admitted[asked] = [agent for agent in self._agents if asked.admits(agent.node)]
        return self._admitted[asked]

    def _group(self, demand: Demand) -> list[_Group]:
        """Return the agents that the gang can be formed of, those together that can be in one.

        Agents that are set aside are left out where others are enough, busy or not.
        """
        asked = demand.asked
        staying = [
            agent for agent in self._admit(asked) if not agent.away and agent.stays_s >= demand.lasts_s
        ]
        # Jobs that ask for the same differ only in who stays long enough for them.
        key = asked, len(staying)
        if key in self._groups:
            return self._groups[key]
        for every in ([agent for agent in staying if not agent.objection], staying):
            found: defaultdict[tuple[object, ...], list[Supply]] = defaultdict(list)
            for agent in every:
                found[asked.group(agent.node)].append(agent)
            self._groups[key] = [tuple(group) for group in found.values()]
            if any(len(group) >= asked.nodes for group in found.values()):
                break
        return self._groups[key]

    def _choose(self, demand: Demand, groups: Iterable[_Group]) -> list[Supply]:
        """Return the best gang of idle agents that are kept for no job; empty if there is none."""
        gangs = []
        for group in groups if len(self._idle) >= demand.asked.nodes else ():
            free = [agent for agent in group if agent.id in self._idle and agent.id not in self._kept]
            if len(free) >= demand.asked.nodes:
                gangs.append(_compose(free, demand))
        return min(gangs, key=lambda gang: _rate(gang, demand), default=[])

    def _explain(self, demand: Demand, groups: Iterable[_Group], ahead: int) -> str:
        largest: _Group = max(groups, key=len, default=())
        idle = [agent for agent in largest if agent.id in self._idle]
        keepers = {self._kept[agent.id] for agent in idle if agent.id in self._kept}
        admitted = self._admit(demand.asked)
        every = () if demand.asked.signed else self._admit(replace(demand.asked, signed=True))
        signed_only = [agent for agent in every if agent.node.signed_only and not agent.away]
        return explain_wait(
            demand,
            admitted,
            largest,
            len(idle),
            ahead=ahead,
            keepers=keepers,
            pools=self._pools,
            signed_only=signed_only,
        )


def _compose(idle: Sequence[Supply], demand: Demand) -> list[Supply]:
    """Return the best gang of a group: as it was before where all of it is idle, else of one rack where one fits."""
    nodes = demand.asked.nodes
    places = {name: place for place, name in enumerate(demand.before)}
    again = sorted((agent for agent in idle if agent.name in places), key=lambda agent: places[agent.name])
    if len(again) == nodes:
        return again
    racks: defaultdict[str, list[Supply]] = defaultdict(list)
    for agent in idle:
        racks[agent.node.labels.get(RACK, "")].append(agent)

    def rate_rack(rack: str) -> tuple[int, bool, int, str]:
        known = sum(agent.name in places for agent in racks[rack])
        fits = len(racks[rack]) >= nodes
        # The smallest one that is large enough; where none is, the largest ones: as few racks as possible.
        return -known, not fits, len(racks[rack]) if fits else -len(racks[rack]), rack

    def rate_agent(agent: Supply) -> tuple[int, bool, str]:
        return places.get(agent.name, nodes), bool(agent.objection), agent.name

    return [agent for rack in sorted(racks, key=rate_rack) for agent in sorted(racks[rack], key=rate_agent)][
        :nodes
    ]


def _rate(gang: Sequence[Supply], demand: Demand) -> tuple[float | str, ...]:
    """What makes one group's gang better than another's: the least is the best."""
    known = sum(agent.name in demand.before for agent in gang)
    alike = sum(find_kind(agent.node) in demand.kinds for agent in gang)
    racks = len({agent.node.labels.get(RACK, "") for agent in gang})
    return -known, -alike, racks, gang[0].name
