"""Does a server's memory go on rising with the jobs it has seen? Jobs from beginning to end in one process, on SQLite.

Each job is submitted, gets a session, reports a few races through the services as a server does, is cancelled, and its
session is given up; nothing of it is needed afterwards. Printed as the jobs go by: resident memory, what Python's
collector holds, and the size of the database.

    python benchmarks/memory_of_jobs.py --jobs 3000
"""

import argparse
import gc
import itertools
import sys
import tempfile
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from advisor.protocol.measured.messages import RaceReport
from advisor.services.measuring import races
from advisor.storage import Database
from tests.unit.services.scripted_tuning import ScriptedTuning, make_result
from tests.unit.services.world import World

_RACES = 3
_SILENCE_S = 40.0
"""More than a lease and its grace."""
_TOLD = 10
"""Lines that are printed."""


def play_job(world: World, agent_id: str) -> None:
    """Let one job begin, measure and end."""
    job = world.submit()
    world.poll(agent_id)
    (place,) = world.start_session(agent_id)
    for _ in range(_RACES):
        race = world.begin(place, agent_id)
        results = {arm.block_id: make_result(0.1) for arm in race.arms}
        report = RaceReport(generation=place.generation, results=results)
        races.report_race(
            world.database, world.tuning, place.session_id, race.race_id, agent_id, report, world.now
        )
    world.cancel(job.id)
    world.wait(_SILENCE_S)
    world.reaper.look(world.now)


def main() -> None:
    """Play the jobs, and print what they leave."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=3000)
    jobs = parser.parse_args().jobs
    with tempfile.TemporaryDirectory() as folder:
        file, numbers = Path(folder) / "advisor.db", itertools.count(1)
        database = Database(f"sqlite:///{file}", lambda: "unused")
        database.migrate()
        database.close()
        tuning = ScriptedTuning([{"num_threads": count} for count in range(1, 2 + _RACES)], 1)
        world = World(f"sqlite:///{file}", tuning, (f"id{number}" for number in numbers))
        agent_id = world.register("one")
        for number in range(1, jobs + 1):
            play_job(world, agent_id)
            if number % max(1, jobs // _TOLD) == 0:
                gc.collect()
                print(
                    f"{number:6} jobs  {psutil.Process().memory_info().rss / 2**20:6.1f} MB resident  "
                    f"{len(gc.get_objects()):7} objects  database {file.stat().st_size / 2**20:5.1f} MB",
                    flush=True,
                )
        world.database.close()


if __name__ == "__main__":
    main()
