"""The made-up jobs in a real database, and the pages over it: what tests of the pages look at and change."""

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from html import unescape
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

from sqlalchemy import insert, select, update
from starlette.types import ASGIApp

from advisor.dashboard import Source, build_pages
from advisor.protocol.asked.jobs import Job
from advisor.protocol.measured.messages import MemberState
from advisor.protocol.measured.trials import Block
from advisor.protocol.nodes.cluster import Node
from advisor.protocol.views import AgentView, EventKind, JobEvent, Role, TokenView
from advisor.services.agents import view_agents
from advisor.services.jobs import get_job
from advisor.services.timers import Timers
from advisor.services.tokens import hash_secret
from advisor.storage import Database, UnitOfWork
from advisor.storage.tables import AgentRow, EventRow, JobRow, LogRow, MemberRow, ResultRow
from advisor.tuning.asked import Tuning
from tests.samples.job import Story, make_agents, make_finished_story, make_running_story

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
ADMIN, SUBMITTER, VIEWER = "adv_admin_1_x", "adv_submitter_2_x", "adv_viewer_3_x"


def read_words(page: str) -> str:
    """Return what a page says, without its tags: a command's words stand in elements of their own."""
    return unescape(re.sub(r"<[^>]+>", "", page))


class Clock:
    """The time as a test sets it."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, length: timedelta) -> None:
        self.now += length


class _Latest:
    """The source of the stories that were opened last."""

    source: Source

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)


_LATEST = _Latest()


@cache
def share_pages() -> ASGIApp:
    """Return the pages over the stories that were opened last. Building them takes longer than most tests."""
    numbers = itertools.count()
    return build_pages(cast(Source, _LATEST), lambda: f"secret-{next(numbers)}")


class Stories:
    """A database of made-up jobs, agents and tokens, which a test changes behind the pages' back."""

    def __init__(self, path: Path) -> None:
        """`path` is that of a SQLite file with all tables."""
        ids, self._secrets = itertools.count(), itertools.count()
        self.clock = Clock()
        self._database = Database(f"sqlite:///{path}", lambda: f"new{next(ids)}")
        self.source = _LATEST.source = Source(self._database, self.clock, Tuning(), Timers())
        running = make_running_story(NOW)
        busy = running.job.model_copy(update={"id": "busy"})
        busy_story = Story(busy, running.history, None, running.events, running.log)
        self.told = {"sample": make_finished_story(NOW), "busy": busy_story}

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def fill(self) -> None:
        """Store a running job, a finished one, agents in every state, and a token of each kind."""
        self.connect(make_agents(NOW))
        for story in self.told.values():
            self.tell(story)
        with self._database.begin() as work:
            for token_id, role, label in (
                ("1", Role.ADMIN, "root"),
                ("2", Role.SUBMITTER, "ada"),
                ("3", Role.VIEWER, "vic"),
            ):
                work.tokens.add(token_id, role, label, hash_secret("x"), NOW)
            work.tokens.add("old", Role.VIEWER, "", "", NOW, expires_at=NOW - timedelta(days=1))
            work.tokens.add("many", Role.AGENT, "rack 7", "", NOW, uses=3)
            work.tokens.add("own", Role.AGENT, "node01", "", NOW, "agent-node01")

    def build_pages(self, take_link: Callable[[str], str | None] = lambda _: None) -> ASGIApp:
        """Return pages of their own over the database."""
        return build_pages(self.source, lambda: f"secret-{next(self._secrets)}", take_link=take_link)

    def tell(self, story: Story) -> None:
        """Store a story in place of what there was of the same job."""
        job, history, telling = story.job, story.history, token_hex(4)
        self.told[job.id] = story

        def own(name: str) -> str:
            # Of this job and this telling: another story has the same names, and a block that was read is known by its.
            return name and f"{job.id}-{telling}-{name}"

        with self._database.begin() as work:
            serial = work.connection.execute(select(JobRow.serial).where(JobRow.id == job.id)).scalar()
            work.jobs.delete(job.id)
            work.jobs.add(job)
            counters = {
                "events": len(story.events),
                "chunks": len(story.log),
                "generation": len(history.sessions),
            }
            place = {"serial": serial} if serial is not None else {}
            work.connection.execute(update(JobRow).where(JobRow.id == job.id).values(counters | place))
            for session in history.sessions:
                work.sessions.add(session.model_copy(update={"id": own(session.id), "job_id": job.id}))
                for rank, agent in enumerate(session.agents):
                    self._seat(work, own(session.id), agent, rank, is_live=not session.state.is_final)
            for trial in history.trials:
                work.trials.add(job.id, trial)
            for block in history.blocks:
                _store_block(work, job, block, own)
            for kind, items in ((EventRow, story.events), (LogRow, story.log)):
                rows = [
                    {name: getattr(item, name) for name in type(item).model_fields}
                    | {"job_id": job.id, "session_id": item.session_id and own(item.session_id)}
                    for item in items
                ]
                if rows:
                    work.connection.execute(insert(kind), rows)
            if story.advice is not None:
                work.advice.put(story.advice.model_copy(update={"job_id": job.id}), NOW)
            for agent in history.sessions[-1].agents if history.sessions else ():
                points = [(point.offset_s, point.sample) for point in story.telemetry if point.agent == agent]
                if points:
                    work.telemetry.add(own(history.sessions[-1].id), f"agent-{agent}", points)
            for run in story.runs:
                work.runs.put(job.id, run)

    def forget(self, *job_ids: str) -> None:
        """Delete jobs."""
        with self._database.begin() as work:
            for job_id in job_ids:
                work.jobs.delete(job_id)

    def happen(self, job_id: str, kind: str, sentence: str) -> None:
        """Add an event to a job's story."""
        story = self.told[job_id]
        event = JobEvent(seq=len(story.events) + 1, at=NOW, kind=EventKind(kind), sentence=sentence)
        self.told[job_id] = replace(story, events=(*story.events, event))
        self.source.change(lambda work: work.events.append(job_id, event.kind, sentence, NOW))

    def connect(self, agents: Iterable[AgentView]) -> None:
        """Let these be the agents that are known."""
        with self._database.begin() as work:
            work.connection.execute(update(AgentRow).values(removed_at=NOW))
            for agent in agents:
                values = {
                    "name": agent.name, "node": agent.node, "flag": agent.flag, "registered_at": NOW,
                    "last_seen_at": agent.last_seen_at, "removed_at": None,
                }  # fmt: skip
                if (
                    work.connection.execute(
                        update(AgentRow).where(AgentRow.id == agent.id).values(values)
                    ).rowcount
                    == 0
                ):
                    work.connection.execute(insert(AgentRow).values(values | {"id": agent.id}))

    def job(self, job_id: str) -> Job:
        """Return a job as it is stored."""
        return self.source.read(get_job, job_id)

    def count_jobs(self) -> int:
        """Return how many jobs are stored."""
        return self.source.read(lambda work: len(work.connection.execute(select(JobRow.id)).all()))

    def agents(self) -> dict[str, AgentView]:
        """Return the agents by their ids."""
        return {agent.id: agent for agent in self.source.read(view_agents, NOW, Timers())}

    def tokens(self) -> dict[str, TokenView]:
        """Return the tokens by their ids, the newest first, but for when they were last used."""
        found = self.source.read(lambda work: work.tokens.page(1000, None, None))
        return {token.id: token.model_copy(update={"last_used_at": None}) for token in found}

    @staticmethod
    def _seat(work: UnitOfWork, session_id: str, agent: str, rank: int, is_live: bool) -> None:
        """Give an agent its place in a session; it lives there, unless it lives in another one."""
        agent_id = f"agent-{agent}"
        if not work.agents.exists(agent_id):
            work.agents.add(agent_id, agent, Node(hostname=agent, cpu_count=1, memory_bytes=1), NOW)
        is_live = is_live and work.members.live_of(agent_id) is None
        state = MemberState.RUNNING if is_live else MemberState.GONE
        work.connection.execute(
            insert(MemberRow).values(
                session_id=session_id, agent_id=agent_id, node_rank=rank, state=state, live=is_live
            )
        )


def _store_block(work: UnitOfWork, job: Job, block: Block, own: Callable[[str], str]) -> None:
    work.blocks.issue(
        job.id, block.model_copy(update={"id": own(block.id), "session_id": own(block.session_id)})
    )
    if block.result is not None:
        result = replace(block.result, same_as=own(block.result.same_as))
        work.connection.execute(
            insert(ResultRow).values(
                block_id=own(block.id),
                generation=1,
                payload_sha256="",
                body=result,
                accepted_at=block.issued_at,
            )
        )
