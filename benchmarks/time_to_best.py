"""Seconds until a strategy within 2 % of the best is in hand: Fleet Advisor against Optuna and Ray Tune that relaunch.

    python benchmarks/time_to_best.py [--surfaces benchmarks/surfaces/decoder-300mbit.json …] [--repeats 2]
        [--trials 16] [--ways advisor optuna ray] [--output docs/results/time_to_best.md]

All ways tune the same training over the same shaped links of a live testbed, on the grid of a recorded surface. Plain
Optuna (TPE as it comes) and Ray Tune (`ray[tune]` is needed; its Optuna searcher, one trial at a time) launch torchrun
anew for every trial, with a block of as many steps, because a script's settings are read when it starts. *In hand* is
the best observed strategy for them, and for the advisor the strategy that its search would recommend. The time counts
from the command's start, the advisor's server and agents included, to the moment from which the strategy in hand stays
close until the search ends.

How good a strategy really is, is measured when all ways have ended: every strategy that one of them ever held, and the
best of the recording, race each other and the baseline in launches of their own (`--passes`), all of them in one race.
The best is the one of the highest mean on the grid; close means within 2 % of it, or within the standard error of the
difference of the two, if that is more. Needs root.
"""

import argparse
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import optuna
from judged_strategies import Judged, judge, testbed_ranks
from record_surface import PLANS, WORKLOADS
from recorded_surface import RecordedSurface
from sessions import ROOT, Ranks, SessionFailed, run_session
from surfaces import load_surface

sys.path.insert(0, str(ROOT))

from advisor.client import Client
from advisor.local.agents import local_agents
from advisor.local.server import local_server
from advisor.local.testbed import testbed_places, unavailable_because
from advisor.protocol.asked.jobs import Budget, JobSpec, Measurement, Stage
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import BlockState, JobHistory
from advisor.protocol.nodes.testbed import Testbed
from advisor.protocol.training.workload import Workload
from advisor.tuning.history.record import Record
from advisor.tuning.measure.statistics import summarise_block
from advisor.tuning.search.state import look
from agent.sessions.control import parse_result

_CLOSE = 0.02
_BLOCK = {"warmup_steps": 5, "min_steps": 12, "max_steps": 60, "target_s": 1.0}
_POLL_S = 0.5

Holdings = list[tuple[float, Mapping[str, Value]]]
"""(seconds since the start, strategy in hand) after every race, or trial."""


def time_until_close(judged: Judged, held: Holdings) -> float:
    """Return the seconds from which the strategy in hand stays close to the best; infinite where it never does."""
    since = math.inf
    for seconds, changes in held:
        since = min(since, seconds) if judged.is_close(changes) else math.inf
    return since


def tune_with_advisor(
    surface: RecordedSurface, testbed: Testbed, words: Sequence[str], trials: int, seed: int
) -> Holdings:
    """Run a real job from its first process to the end of its search."""
    began = time.monotonic()
    spec = JobSpec(
        name=surface.name,
        workload=Workload(
            command=("torchrun", "--nproc-per-node", "1", *words), working_dir=str(WORKLOADS)
        ),
        nodes=testbed.nodes,
        testbed=testbed,
        allow=surface.allow,
        knobs=tuple(surface.grid),
        values={knob: tuple(values) for knob, values in surface.grid.items()},
        budget=Budget(max_trials=trials, max_seconds=1800),
        measurement=Measurement(
            warmup_steps=_BLOCK["warmup_steps"], min_steps=_BLOCK["min_steps"], max_steps=_BLOCK["max_steps"],
            block_s=_BLOCK["target_s"],
        ),
        seed=seed,
    )  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    held: Holdings = []
    with tempfile.TemporaryDirectory(prefix="fa-best-") as folder, ExitStack() as stack:
        server = stack.enter_context(local_server(Path(folder), environment, _keep_quiet))
        places = stack.enter_context(testbed_places(testbed, server, _keep_quiet))
        stack.enter_context(local_agents(server, Path(folder), places, environment, _keep_quiet))
        client = stack.enter_context(Client(server.url, server.token))
        job = client.submit_job(spec, f"time-to-best-{seed}")
        measured = 0
        while True:
            time.sleep(_POLL_S)
            now = client.job(job.id)
            history = client.history(job.id)
            done = [b for b in history.blocks if b.state is BlockState.DONE]
            if len(done) > measured:
                measured = len(done)
                held.append((time.monotonic() - began, hold_best(now, cut(history, done))))
            if now.state.is_final or now.stage not in (Stage.PROBE, Stage.SEARCH):
                break
        if not now.state.is_final:
            client.cancel_job(job.id)
            while not client.job(job.id).state.is_final:
                time.sleep(_POLL_S)
        elif not held:
            raise SystemExit(f"the job ended without a block: {now.state_reason}")
    return held


def hold_best(job: Any, history: JobHistory) -> Mapping[str, Value]:
    """Return the changes of the strategy that the search would recommend: none is the baseline."""
    state = look(Record(job, history, job.created_at))
    return state.recommendation.changes if state else {}


def cut(history: JobHistory, blocks: Sequence[Any]) -> JobHistory:
    """Return the history as it stood when these blocks were the measured ones."""
    return history.model_copy(update={"blocks": tuple(blocks)})


def tune_with_optuna(
    surface: RecordedSurface, ranks: Ranks, words: Sequence[str], trials: int, seed: int
) -> Holdings:
    """Plain Optuna, as it comes: ask, launch torchrun, tell."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))

    def ask() -> tuple[Any, dict[str, int]]:
        trial = study.ask()
        return trial, {
            knob: trial.suggest_int(knob, 0, len(values) - 1)
            if _is_ordered(values)
            else trial.suggest_categorical(knob, list(range(len(values))))
            for knob, values in surface.grid.items()
        }

    def tell(trial: Any, score: float | None) -> None:
        study.tell(trial, score, state=None if score is not None else optuna.trial.TrialState.FAIL)

    return _relaunch(surface, ranks, words, trials, ask, tell)


def tune_with_ray(
    surface: RecordedSurface, ranks: Ranks, words: Sequence[str], trials: int, seed: int
) -> Holdings:
    """Ray Tune with its Optuna searcher: the searcher is driven directly, so that no time of Ray's cluster counts."""
    from ray import tune
    from ray.tune.search.optuna import OptunaSearch

    searcher = OptunaSearch(seed=seed)
    space = {
        knob: tune.randint(0, len(values)) if _is_ordered(values) else tune.choice(list(range(len(values))))
        for knob, values in surface.grid.items()
    }
    searcher.set_search_properties("score", "max", space)
    numbers = iter(range(10_000))

    def ask() -> tuple[Any, dict[str, int]]:
        name = str(next(numbers))
        return name, dict(searcher.suggest(name))

    def tell(name: Any, score: float | None) -> None:
        searcher.on_trial_complete(name, {"score": score} if score is not None else None, error=score is None)

    return _relaunch(surface, ranks, words, trials, ask, tell)


def _is_ordered(values: Sequence[Value]) -> bool:
    return isinstance(values[0], int | float) and not isinstance(values[0], bool)


def _relaunch(
    surface: RecordedSurface,
    ranks: Ranks,
    words: Sequence[str],
    trials: int,
    ask: Callable[[], tuple[Any, dict[str, int]]],
    tell: Callable[[Any, float | None], None],
) -> Holdings:
    began = time.monotonic()
    held: Holdings = []
    best: tuple[float, Mapping[str, Value]] = (-math.inf, {})
    for _ in range(trials):
        trial, places = ask()
        changes = surface.changes_at(places)
        score = _launch(changes, ranks, words)
        tell(trial, score)
        if score is not None and score > best[0]:
            best = (score, changes)
        held.append((time.monotonic() - began, best[1]))
    return held


def _launch(changes: Mapping[str, Value], ranks: Ranks, words: Sequence[str]) -> float | None:
    """One torchrun for one strategy; ln(samples per second), or None where it failed."""
    block = {"overrides": dict(changes), **_BLOCK, "profile_steps": 0}
    try:
        [result] = run_session((str(WORKLOADS / words[0]), *words[1:]), [block], ranks)
    except SessionFailed:
        return None
    parsed = parse_result(result)
    if any(name in parsed.not_consumed for name in changes) or not parsed.steps:
        return None
    return math.log(max(parsed.samples_per_step, 1e-12)) - summarise_block(parsed).log_step_time


def _keep_quiet(_: str) -> None:
    """What the local server tells people is of no interest here."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = ROOT / "benchmarks" / "surfaces"
    parser.add_argument("--surfaces", type=Path, nargs="+", default=[folder / "decoder-300mbit.json"])
    parser.add_argument("--ways", nargs="+", default=["advisor", "optuna"], choices=["advisor", *PEERS])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument(
        "--passes", type=int, default=4, help="launches that judge the strategies, two or more"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "time_to_best.md")
    arguments = parser.parse_args()
    if reason := unavailable_because():
        raise SystemExit(f"no testbed: {reason}")
    if arguments.passes < 2:
        raise SystemExit(f"--passes {arguments.passes}: one launch shows no spread; give 2 or more")
    runs: list[str] = []
    sums: list[str] = []
    for path in arguments.surfaces:
        surface = load_surface(path)
        workload, _, rate = surface.name.rpartition("-")
        testbed = Testbed(nodes=2, rate=rate)
        held: list[tuple[int, str, Holdings]] = []
        for repeat in range(arguments.repeats):
            for way in arguments.ways if repeat % 2 == 0 else reversed(arguments.ways):
                if way == "advisor":
                    found = tune_with_advisor(
                        surface, testbed, PLANS[workload].words, arguments.trials, repeat
                    )
                else:
                    with testbed_ranks(testbed) as ranks:
                        found = PEERS[way](surface, ranks, PLANS[workload].words, arguments.trials, repeat)
                held.append((repeat, way, found))
                print(f"{surface.name} {repeat + 1} {way}: {describe_holdings(found)}", flush=True)
        every = [changes for *_, found in held for _, changes in found]
        judged = judge(surface, every, testbed, workload, arguments.passes)
        runs += [describe_run(surface.name, *run, judged) for run in held]
        sums.append(describe_surface(surface.name, arguments.ways, held, judged))
        arguments.output.write_text(write_page(arguments.ways, sums, runs))
    print(arguments.output.read_text())


def describe_holdings(held: Holdings) -> str:
    """Return what was in hand when, a change of it at a time."""
    told, last = [], None
    for seconds, changes in held:
        if changes != last:
            told.append(f"{seconds:.0f} s {Changes(changes).describe()}")
        last = changes
    return f"{'; '.join(told)}; ended after {held[-1][0]:.0f} s"


def describe_run(name: str, repeat: int, way: str, held: Holdings, judged: Judged) -> str:
    """Return a row of the table of runs."""
    since, (in_all, last) = time_until_close(judged, held), held[-1]
    return (
        f"| {name} | {repeat + 1} | {way} | {_write_seconds(since)} | {len(held)} | {in_all:.0f} | "
        f"{judged.regret(last):.1%} ± {judged.error(last):.1%} | {Changes(last).describe()} |"
    )


def describe_surface(
    name: str, ways: Sequence[str], held: Sequence[tuple[int, str, Holdings]], judged: Judged
) -> str:
    """Return a row of the table of surfaces: each way's median, and the advisor's over that of each peer."""
    medians = {
        way: (
            median(time_until_close(judged, found) for _, whose, found in held if whose == way),
            median(found[-1][0] for _, whose, found in held if whose == way),
        )
        for way in ways
    }
    cells = [_write_seconds(medians[way][0]) for way in ways]
    cells += [_write_ratio(medians["advisor"][0], *medians[way]) for way in list_compared(ways)]
    close = sum(judged.is_close(changes) for changes in judged.ratios)
    error = median(judged.error(changes) for changes in judged.ratios if changes != judged.best)
    return (
        f"| {name} | {close} of {len(judged.ratios)} | {error:.1%} | "
        f"{judged.regret({}):.0%} | {' | '.join(cells)} |"
    )


def list_compared(ways: Sequence[str]) -> list[str]:
    """Return the peers that the advisor's time is held against: none where it did not run."""
    return [way for way in ways if way != "advisor"] if "advisor" in ways else []


def _write_seconds(seconds: float) -> str:
    return "never" if math.isinf(seconds) else f"{seconds:.0f} s"


def _write_ratio(ours: float, theirs: float, in_all: float) -> str:
    """A peer that never held a close strategy would have needed longer than it was given."""
    if math.isinf(ours):
        return "–"
    return f"< {ours / in_all:.2f}" if math.isinf(theirs) else f"{ours / theirs:.2f}"


def write_page(ways: Sequence[str], sums: Sequence[str], runs: Sequence[str]) -> str:
    """Return the page of these rows."""
    heads = [
        "surface",
        "judged strategies that are close",
        "error of a regret",
        "regret of the script's settings",
    ]
    heads += [*ways, *(f"advisor / {way}" for way in list_compared(ways))]
    lines = [
        "# Time until a strategy within 2 % of the best is in hand", "",
        f"`python benchmarks/time_to_best.py {' '.join(sys.argv[1:])}`", "",
        f"Live on a testbed of two namespaces; {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs, "
        f"{datetime.now(UTC):%Y-%m-%d}. Seconds are medians of the repeats, from a way's first process on.", "",
        f"| {' | '.join(heads)} |", "|" + "---|" * len(heads), *sums, "",
        "## Every run", "",
        "| surface | repeat | way | until close | races or trials | seconds in all | last regret | last in hand |",
        "|---|---|---|---|---|---|---|---|", *runs,
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


PEERS = {"optuna": tune_with_optuna, "ray": tune_with_ray}


if __name__ == "__main__":
    main()
