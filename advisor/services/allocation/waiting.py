"""What a job waits for, in sentences that change only when what they tell of does."""

import math
from collections.abc import Collection, Sequence

from advisor.services.allocation.demand import Asked, Demand, Supply

_MOST_TOLD = 5
"""Agents that one sentence tells of."""


def explain_wait(
    demand: Demand,
    admitted: Sequence[Supply],
    largest: Sequence[Supply],
    idle: int,
    *,
    ahead: int,
    keepers: Collection[str],
    pools: Collection[str],
    signed_only: Sequence[Supply] = (),
) -> str:
    """Return what a job waits for, and what can be done about it.

    `admitted`: the agents that could be in its gang; `largest`: the most of them that could be in one together, `idle`
    of them idle; `ahead`: jobs that come first; `keepers`: jobs that idle agents are kept for; `signed_only`: agents
    that could be in its gang if it were signed.
    """
    asked = demand.asked
    sentence = (
        f"Waiting for {asked.nodes} idle agent{'s' if asked.nodes != 1 else ''}{_describe(asked)}: "
        f"{len(largest)} connected, {idle} idle"
    )
    if keepers and idle >= asked.nodes:
        sentence += f", kept for {'jobs' if len(keepers) > 1 else 'job'} {_list(sorted(keepers))}"
    sentences = [f"{sentence}."]
    if len(largest) >= asked.nodes:
        sentences += [f"{ahead} job{'s come' if ahead > 1 else ' comes'} first."] if ahead else []
    else:
        sentences += _advise_signing(signed_only)
        if len(largest) + len(signed_only) < asked.nodes:
            sentences += _advise(demand, admitted, pools)
    told = [agent.away for agent in admitted if agent.away]
    told += [agent.objection for agent in admitted if agent.objection and agent not in largest]
    return " ".join(sentences + told[:_MOST_TOLD])


def _advise_signing(signed_only: Sequence[Supply]) -> list[str]:
    if not signed_only:
        return []
    start = "starts" if len(signed_only) == 1 else "start"
    return [
        f"{_list(sorted(agent.name for agent in signed_only))} {start} signed jobs only, and this one is not: submit "
        "it signed, `advisor tune --sign KEY`."
    ]


def _advise(demand: Demand, admitted: Sequence[Supply], pools: Collection[str]) -> list[str]:
    """What helps a job for which there are not enough agents."""
    asked = demand.asked
    if asked.testbed is not None:
        return [f"Start `advisor testbed {asked.testbed}` on the server's machine."]
    if asked.pool not in pools:
        named = _list(sorted(set(pools) - {""}))
        if asked.pool:
            others = f"agents are in {named}" if named else f"start agents with `--pool {asked.pool}`"
            return [f"There is no pool of that name: {others}."]
        if named:
            return [f"Every agent is in a pool, and the job names none: {named}."]
    here = [agent for agent in admitted if not agent.away]
    leaving = [agent.name for agent in here if agent.stays_s < demand.lasts_s]
    staying = len(here) - len(leaving)
    if leaving and math.isfinite(demand.lasts_s):
        return [
            f"A session of this job may last {math.ceil(demand.lasts_s / 60)} min, and before that "
            f"{_list(leaving)} will have left: a smaller budget, or `session_timeout_s`, makes it fit."
        ]
    if staying >= asked.nodes:
        same = "the same GPUs" if asked.within is None else f"the same GPUs and one value of {asked.within}"
        return [f"There are {staying}, but nodes of a gang have {same}."]
    return ["Start `advisor-agent run` on more nodes."]


def _describe(asked: Asked) -> str:
    words = [f" of the testbed {asked.testbed}"] if asked.testbed else []
    words += [f" in the pool {asked.pool}"] if asked.pool else []
    words += [f" with {', '.join(f'{key}={value}' for key, value in asked.needs)}"] if asked.needs else []
    words += [f" with one {asked.within}"] if asked.within else []
    return "".join(words)


def _list(names: Sequence[str]) -> str:
    more = len(names) - _MOST_TOLD
    return ", ".join(names[:_MOST_TOLD]) + (f" and {more} more" if more > 0 else "")
