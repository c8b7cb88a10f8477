"""The agents, given away and kept gang by gang: a job gets its whole gang or none of it."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from advisor.protocol.nodes.labels import RACK
from advisor.protocol.nodes.testbed import Testbed
from advisor.services.allocation.demand import Asked, Demand, Place, Supply, find_kind
from advisor.services.allocation.waiting import explain_wait

_Group = tuple[Supply, ...]
"""Agents any of which can hold a session together."""


@dataclass(frozen=True)
class _Kept:
    """An agent is kept for a job, which has its gang in so many seconds at the earliest that is known."""

    job_id: str
    in_s: float


class Allotment:
    """Ask it for one gang after the other, in the order in which jobs come.

    For a job that has to wait it keeps the agents that the job can have soonest, so that later ones do not take them.
    A later job may be lent such agents where its session is over before those that hold the others have to be; can the
    first one start earlier, that session is called off.
    """

    def __init__(self, agents: Sequence[Supply]) -> None:
        self._agents = agents
        self._pools = {agent.node.pool for agent in agents}
        self._idle = {agent.id for agent in agents if agent.session_id is None}
        self._given: dict[str, float] = {}
        """Agents that were given away here -> seconds until they are free again at the latest."""
        self._kept: dict[str, _Kept] = {}
        self._waiting: defaultdict[tuple[Testbed | None, str], int] = defaultdict(int)
        """Of a testbed and a pool -> how many jobs wait that came before."""
        self._admitted: dict[Asked, list[Supply]] = {}
        self._groups: dict[tuple[Asked, int], list[_Group]] = {}

    def place(self, demand: Demand) -> Place:
        """Give a job its gang, or keep what it waits for and say what that is."""
        groups = self._group(demand)
        for lender in (None, *(self._list_lenders(demand) if demand.is_ready else ())):
            if gang := self._choose(demand, groups, lender):
                break
        if gang and not demand.is_ready:
            self._kept |= {agent.id: _Kept(demand.job_id, 0.0) for agent in gang}
            return Place()
        if gang:
            found = tuple(agent.id for agent in gang)
            self.give(found, demand.lasts_s)
            return Place(found, lent_by=lender)
        key = demand.asked.testbed, demand.asked.pool
        waits = self._explain(demand, groups, self._waiting[key])
        calls_off: frozenset[str] = frozenset()
        if any(len(group) >= demand.asked.nodes for group in groups):
            self._waiting[key] += 1
            calls_off = self._keep(demand, groups)
        return Place(calls_off=calls_off if demand.is_ready else frozenset(), waits=waits)

    def find_further(self, demand: Demand) -> tuple[str, ...]:
        """Return a gang for a job that holds a session and could use another one, on nodes like those it has.

        It is of agents that nobody else waits for, and is not given away yet; empty if there is none.
        """
        groups = (
            tuple(agent for agent in group if find_kind(agent.node) in demand.kinds)
            for group in self._group(demand)
        )
        return tuple(agent.id for agent in self._choose(demand, groups, None))

    def give(self, gang: Iterable[str], lasts_s: float) -> None:
        """Give away a gang that was found."""
        self._given |= dict.fromkeys(gang, lasts_s)
        self._idle.difference_update(gang)

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

    def _list_lenders(self, demand: Demand) -> Iterable[str]:
        """The jobs that could lend idle agents for as long as the session lasts, in their order."""
        return dict.fromkeys(
            kept.job_id
            for agent_id, kept in self._kept.items()
            if agent_id in self._idle and demand.lasts_s < kept.in_s
        )

    def _choose(self, demand: Demand, groups: Iterable[_Group], lender: str | None) -> list[Supply]:
        """Return the best gang of idle agents, those included that are kept for `lender`; empty if there is none."""
        gangs = []
        for group in groups if len(self._idle) >= demand.asked.nodes else ():
            idle = [agent for agent in group if self._may_take(agent, demand, lender)]
            if len(idle) >= demand.asked.nodes:
                gangs.append(_compose(idle, demand))
        return min(gangs, key=lambda gang: _rate(gang, demand), default=[])

    def _may_take(self, agent: Supply, demand: Demand, lender: str | None) -> bool:
        if agent.id not in self._idle:
            return False
        kept = self._kept.get(agent.id)
        return kept is None or (kept.job_id == lender and demand.lasts_s < kept.in_s)

    def _keep(self, demand: Demand, groups: Iterable[_Group]) -> frozenset[str]:
        """Keep the agents that the job can have soonest; return the lent sessions that alone keep it from starting."""
        nodes = demand.asked.nodes

        def wait_for(agent: Supply) -> float:
            is_lent = agent.lent_by == demand.job_id
            held_s = 0.0 if agent.session_id is None or is_lent else agent.free_in_s
            return self._given.get(agent.id, held_s)

        best: tuple[int, float, list[Supply]] | None = None
        for group in groups:
            if len(group) < nodes or all(agent.id in self._kept for agent in group):
                continue
            soonest = sorted(
                group, key=lambda agent: (wait_for(agent), agent.session_id is not None, agent.name)
            )
            # Where jobs that came first leave fewer than are needed, nobody knows how long it really takes.
            in_s = wait_for(soonest[nodes - 1])
            left = [agent for agent in soonest if agent.id not in self._kept and agent.id not in self._given]
            found = -len(left[:nodes]), in_s, left[:nodes]
            if best is None or found[:2] < best[:2]:
                best = found
        if best is None:
            return frozenset()
        _, in_s, chosen = best
        self._kept |= {agent.id: _Kept(demand.job_id, in_s) for agent in chosen}
        if len(chosen) < nodes or any(wait_for(agent) > 0 for agent in chosen):
            return frozenset()
        return frozenset(
            agent.session_id for agent in chosen if agent.session_id and agent.lent_by == demand.job_id
        )

    def _explain(self, demand: Demand, groups: Iterable[_Group], ahead: int) -> str:
        largest: _Group = max(groups, key=len, default=())
        idle = [agent for agent in largest if agent.id in self._idle]
        lenders = {kept.job_id for agent in idle if (kept := self._kept.get(agent.id))}
        admitted = self._admit(demand.asked)
        every = () if demand.asked.signed else self._admit(replace(demand.asked, signed=True))
        signed_only = [agent for agent in every if agent.node.signed_only and not agent.away]
        return explain_wait(
            demand,
            admitted,
            largest,
            len(idle),
            ahead=ahead,
            lenders=lenders,
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
