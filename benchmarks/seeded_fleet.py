"""A database with a fleet at work, written before the server starts: agents with tokens, jobs, sessions, races.

Everything goes through the services' and the storage's own functions, in the state that it has after an agent has
registered, taken its place and begun to measure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx

from advisor.app import make_id
from advisor.protocol.asked.jobs import Budget, Job, JobSpec, JobState, Stage
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.knobs.knob import Effect
from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.trials import (
    Block,
    BlockPlan,
    BlockState,
    JobHistory,
    Purpose,
    Session,
    SessionState,
    Trial,
)
from advisor.protocol.nodes.cluster import Cluster, Node
from advisor.protocol.training.workload import Workload
from advisor.protocol.views import EventKind, NewToken, Role
from advisor.services.tokens import create_token
from advisor.storage import Database, UnitOfWork
from advisor.tuning.asked import Tuning
from advisor.tuning.history.record import Record
from advisor.tuning.search.candidate_pool import list_candidates
from advisor.tuning.search.state import look
from tests.unit.services.fleet import measure_steps
from tests.unit.tuning.simulated_cluster import make_facts

_AT_ONCE = 500
_PLACES, _STRATEGIES = 3, 150
_MONTH_S = 30 * 24 * 3600.0
_TUNING = Tuning()


@dataclass
class Seat:
    """An agent that holds a place in a running session."""

    job_id: str
    session_id: str
    agent_id: str
    token: str
    arms: list[str] = field(default_factory=list)
    """Blocks of the race that it measures, the first one of which names the race."""


class IdleAgent:
    """An agent that waits for work, and gets none."""

    def __init__(self, url: str, enrolment: str, name: str) -> None:
        self._http = httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=120)
        self._enrolment, self._name = enrolment, name

    async def wait(self) -> None:
        """Register, and ask for work for ever."""
        node = Node(hostname=self._name, cpu_count=2, memory_bytes=2**34).model_dump(mode="json")
        body = {"name": self._name, "node": node, "secret": self._name}
        known = await self._ask("/agents", body, self._enrolment)
        while True:
            await self._ask(f"/agents/{known['agent_id']}/poll", {}, known["token"])

    async def _ask(self, path: str, body: object, token: str) -> dict[str, Any]:
        reply = await self._http.post(path, json=body, headers={"Authorization": f"Bearer {token}"})
        reply.raise_for_status()
        return dict(reply.json())


def measure(changes: Any, number: int) -> Any:
    """Return made-up turns: each strategy has a speed of its own, and everything wobbles a little."""
    speed = 1 + 0.02 * math.sin(sum(len(str(value)) * 7 + ord(str(value)[0]) for value in changes.values()))
    return measure_steps(changes, lambda _: speed, 0.001 * ((number * 5) % 7 - 3) / 3)


def seed(
    data_dir: Path, sessions: int, nodes: int = 1, *, with_race: bool = False, probed: bool = False
) -> list[Seat]:
    """Write a fleet of `sessions` gangs of `nodes` agents each; return all seats, leaders' first within each gang.

    `with_race`: each session measures a race of the baseline alone. `probed`: one such race is behind it.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    database = Database(f"sqlite:///{data_dir / 'advisor.db'}", make_id)
    database.migrate()
    seats: list[Seat] = []
    for start in range(0, sessions, _AT_ONCE):
        with database.begin() as work:
            for number in range(start, min(start + _AT_ONCE, sessions)):
                seats += _add_gang(work, number, nodes, with_race, probed)
    database.close()
    return seats


def deepen(data_dir: Path, seats: Sequence[Seat], blocks: int) -> None:
    """Give the jobs of these seats a history of that many measured blocks each."""
    database = Database(f"sqlite:///{data_dir / 'advisor.db'}", make_id)
    for seat in seats:
        _fill(database, seat.job_id, seat.session_id, blocks)
        with database.begin() as work:
            # The last race of it is under way: the next one is to be thought about.
            for block in work.blocks.issued_in(seat.session_id):
                work.blocks.void(block.id, "The benchmark gives it up.", datetime.now(UTC))
    database.close()


def _fill(database: Database, job_id: str, session_id: str, blocks: int) -> None:
    """Write accepted races until a job has `blocks` blocks less one race; one more is under way."""
    with database.read() as work:
        job = work.jobs.get(job_id)
        assert job is not None
        history = JobHistory(
            trials=work.trials.of_job(job_id),
            blocks=work.blocks.of_job(job_id),
            sessions=work.sessions.of_job(job_id),
        )
    now = datetime.now(UTC)
    state = look(Record(job, history, now))
    assert state is not None
    strategies = list_candidates(state.space, set(), [], 1)[:_STRATEGIES]
    session = next(session for session in history.sessions if session.id == session_id)
    races = max(1, (blocks - len(history.blocks)) // (_PLACES + 1))
    chosen = cycle(range(len(strategies)))
    numbers: dict[int, int] = {}
    ordinal = len(history.blocks)
    for race in range(races):
        with database.begin() as work:
            arms: list[tuple[int, Any]] = [(0, Changes())]
            for place in islice(chosen, _PLACES):
                if place not in numbers:
                    numbers[place] = len(work.trials.of_job(job_id))
                    trial = Trial(number=numbers[place], purpose=Purpose.SEARCH, changes=strategies[place],
                                  effect=Effect.EXACT, because="A strategy of the space.", created_at=now)  # fmt: skip
                    work.trials.add(job_id, trial)
                arms.append((numbers[place], strategies[place]))
            made = []
            for place, (number, changes) in enumerate(arms):
                plan = BlockPlan(block_id=make_id(), trial_number=number, overrides=changes)
                made.append(
                    Block(id=plan.block_id, session_id=session_id, trial_number=number, ordinal=ordinal,
                          race=race + 2, arm=place, state=BlockState.ISSUED, plan=plan, issued_at=now)
                )  # fmt: skip
                work.blocks.issue(job_id, made[-1])
                ordinal += 1
            if race < races - 1:
                reference = measure({}, race)
                for block in made:
                    result = measure(block.plan.overrides, race)
                    summary = _TUNING.summarise(result, reference if block.arm else None)
                    work.blocks.accept(block, session.generation, result, summary, "sha", now)
            work.jobs.set_stage(job_id, Stage.SEARCH)
            work.events.append(job_id, EventKind.JOB, "A race was written.", now)


def _add_gang(work: UnitOfWork, number: int, nodes: int, with_race: bool, probed: bool) -> list[Seat]:
    now, job_id = datetime.now(UTC), make_id()
    spec = JobSpec(
        name=f"gates-{number}",
        workload=Workload(command=("torchrun", "train.py")),
        nodes=nodes,
        budget=Budget(max_seconds=_MONTH_S, max_trials=500),
        session_timeout_s=_MONTH_S,
        seed=number,
    )
    machines = tuple(
        Node(hostname=f"n{number}-{rank}", cpu_count=2, memory_bytes=2**34) for rank in range(nodes)
    )
    facts = make_facts(world_size=2 * nodes, nodes=nodes, local_world_size=2)
    work.jobs.add(
        Job(id=job_id, spec=spec, state=JobState.RUNNING, stage=Stage.PROBE, created_at=now, started_at=now,
            facts=facts, cluster=Cluster(nodes=machines), baseline={"fuse_grad_size_in_MB": 25.0})
    )  # fmt: skip
    work.jobs.start(job_id, Cluster(nodes=machines), now)
    # As after its script was seen: what earlier jobs teach is chosen once for a job.
    work.jobs.choose_earlier(job_id, ())
    session = Session(id=make_id(), job_id=job_id, generation=1, state=SessionState.RUNNING,
                      because="A benchmark.", created_at=now, started_at=now)  # fmt: skip
    work.sessions.add(session)
    seats = []
    for rank, machine in enumerate(machines):
        agent_id = make_id()
        work.agents.add(agent_id, machine.hostname, machine, now)
        token = create_token(work, NewToken(role=Role.AGENT, label=machine.hostname), now, agent_id).token
        work.members.add(session.id, agent_id, rank)
        work.members.renew(session.id, agent_id, 1, MemberState.RUNNING)
        seats.append(Seat(job_id, session.id, agent_id, token))
    if with_race or probed:
        trial = Trial(number=0, purpose=Purpose.BASELINE, because="The script as it stands.", created_at=now)
        work.trials.add(job_id, trial)
    if probed:
        block = _issue(work, session, 0, now)
        result = measure({}, number)
        work.blocks.accept(block, 1, result, _TUNING.summarise(result), "sha", now)
    if with_race:
        seats[0].arms = [_issue(work, session, int(probed), now).id]
    return seats


def _issue(work: UnitOfWork, session: Session, ordinal: int, now: datetime) -> Block:
    plan = BlockPlan(block_id=make_id(), trial_number=0, overrides=Changes())
    block = Block(id=plan.block_id, session_id=session.id, trial_number=0, ordinal=ordinal, race=ordinal + 1,
                  state=BlockState.ISSUED, plan=plan, issued_at=now)  # fmt: skip
    work.blocks.issue(session.job_id, block)
    return block
