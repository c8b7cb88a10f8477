"""Planning: how long is one suggestion thought about after 10, 100 and 1,000 measurements?

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python benchmarks/planning_speed.py [--repeats 15] [--allow convergence]

A job of two nodes with a loader, whose strategies have drawn effects and one per cent of noise; half of a long history
are repeats, as in a real search. Measured is one whole suggestion from scratch, nothing kept from the one before: the
cost model's fit, what is believed, four strategies for the next race, and the recommendation. Milliseconds of processor
time (all threads together), the least of the repeats and their median: other work beside it counts little that way.
Exits with 1 when a least time is above its limit.
"""

import argparse
import math
import platform
import random
import statistics
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.model.cost_model import TimedStrategy, calibrate
from advisor.tuning.search.asking import suggest
from advisor.tuning.search.belief import Observation, learn
from advisor.tuning.search.candidate_pool import list_candidates
from advisor.tuning.search.recommendation import recommend
from advisor.tuning.space.space import Space, build_space

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.unit.tuning.measured_job import PHASES, make_block
from tests.unit.tuning.search_space import make_cluster, make_facts, make_job, make_spec

LIMITS_MS = {10: 30.0, 100: 60.0, 1000: 150.0}
"""Measurements -> milliseconds that a suggestion may take: then nobody waits for it between two races."""
STEP_S = 0.5
"""Step time of the baseline."""
NOISE = 0.01
"""Standard error of a measurement, in ln(throughput)."""
PROBE = [make_block(STEP_S, PHASES)] * 2


def make_benchmarked_space(allow: str) -> Space:
    """A space of nine (exact) to twenty-one (convergence) knobs."""
    facts = make_facts(dataloader={"num_workers": 2, "prefetch_factor": 2, "pin_memory": False})
    job = make_job(make_spec(allow=allow), facts=facts, cluster=make_cluster(cpus=16))
    return build_space(job, facts, PROBE)


def draw_history(space: Space, count: int) -> list[Observation]:
    """Measured strategies: all different where there are few, half of them repeats where there are many."""
    dice = random.Random(count)
    pool = [changes for seed in range(8) for changes in list_candidates(space, set(), [], seed)]
    dice.shuffle(pool)
    strategies = pool[:count] if count <= 10 else dice.choices(pool[: count // 2], k=count)
    return [Observation(Changes(c), effect_of(c) + dice.gauss(0, NOISE), NOISE) for c in strategies]


def effect_of(changes: Mapping[str, Value]) -> float:
    """What a strategy brings, in ln(throughput): a drawn effect for each value."""
    return sum(
        0.03 * math.sin(zlib.crc32(f"{name} {value}".encode()) % 100) for name, value in changes.items()
    )


def plan_once(space: Space, history: list[Observation]) -> tuple[float, float, float]:
    """Return the seconds of the cost model's fit, of believing and choosing, and of recommending."""
    start = time.process_time()
    own = space.context.baseline
    timed = [
        TimedStrategy({**own, **o.changes}, STEP_S * math.exp(-(o.score or 0.0)), o.error) for o in history
    ]
    model = calibrate(space.context, PROBE, timed)
    fitted = time.process_time()
    belief = learn(space, history, model)
    suggest(space, history, [], seed=0, number=len(history), count=4, model=model, belief=lambda _: belief)
    chosen = time.process_time()
    recommend(belief)
    return fitted - start, chosen - fitted, time.process_time() - chosen


def measure(plan: Callable[[], tuple[float, float, float]], repeats: int) -> tuple[list[float], float]:
    """Return the least milliseconds of each part and of the whole, and the median of the whole."""
    plan()
    runs = [plan() for _ in range(repeats)]
    whole = [1000.0 * sum(run) for run in runs]
    parts = [1000.0 * min(run[part] for run in runs) for part in range(3)]
    return [*parts, min(whole)], statistics.median(whole)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--allow", nargs="*", default=["exact", "convergence"])
    options = parser.parse_args()
    print(f"{platform.system()} {platform.machine()}, numpy {np.__version__}")
    print()
    print("| knobs | measurements | fit | choose | recommend | in all | median | against 10 | limit |")
    print("|---|---|---|---|---|---|---|---|---|")
    within = True
    for allow in options.allow:
        space = make_benchmarked_space(allow)
        first = 0.0
        for count, limit in LIMITS_MS.items():
            history = draw_history(space, count)
            (fit, choose, advise, whole), median = measure(
                lambda space=space, history=history: plan_once(space, history), options.repeats
            )
            first = first or whole
            within = within and whole <= limit
            print(
                f"| {len(space.dimensions)} ({allow}) | {count:,} | {fit:.1f} | {choose:.1f} | {advise:.1f} | "
                f"**{whole:.1f}** | {median:.1f} | {whole / first:.2f} × | {limit:.0f} ms |",
                flush=True,
            )
    return 0 if within else 1


if __name__ == "__main__":
    raise SystemExit(main())
