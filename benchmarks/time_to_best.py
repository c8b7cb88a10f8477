"""Seconds until a strategy within 2 % of the best is in hand: Fleet Advisor against Optuna and Ray Tune that relaunch.

    python benchmarks/time_to_best.py [--surface benchmarks/surfaces/decoder-300mbit.json] [--repeats 2] [--trials 40]
        [--ways advisor optuna ray] [--output docs/results/time_to_best.md]

All ways tune the same training over the same shaped links of a live testbed, on the grid of a recorded surface, whose
truth says how good the strategy in hand really is; no way gets to see it. Plain Optuna (TPE as it comes) and Ray Tune
(`--ways ray`, where it is installed; its Optuna searcher, one trial at a time) launch torchrun anew for every trial,
with a block of as many steps, because a script's settings are read when it starts. *In hand* is the best observed
strategy for them, and for the advisor the strategy that its search would recommend. The time counts from the
command's start, the advisor's server and agents included, to the moment from which the strategy in hand stays within
2 % (or within the error of a difference of two recorded strategies, if that is more) until the search ends. Needs
root.
"""

import argparse
import math
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import optuna
from record_surface import PLANS, WORKLOADS
from recorded_surface import RecordedSurface
from sessions import ROOT, Ranks, SessionFailed, run_session
from surfaces import load_surface

sys.path.insert(0, str(ROOT))

from advisor.client import Client
from advisor.local.agents import local_agents
from advisor.local.server import local_server
from advisor.local.testbed import build_testbed, testbed_places, unavailable_because
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


def time_until_close(surface: RecordedSurface, held: Holdings) -> tuple[float | None, float]:
    """Return the seconds from which the strategy in hand stays close to the best (None: never), and the last regret."""
    close = max(_CLOSE, surface.truth_error)
    since: float | None = None
    for seconds, changes in held:
        if surface.regret(changes) > close:
            since = None
        elif since is None:
            since = seconds
    return since, surface.regret(held[-1][1]) if held else 1.0


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
            if isinstance(values[0], int | float) and not isinstance(values[0], bool)
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

    space = {knob: tune.choice(list(range(len(values)))) for knob, values in surface.grid.items()}
    searcher = OptunaSearch(space, metric="score", mode="max", seed=seed)
    numbers = iter(range(10_000))

    def ask() -> tuple[Any, dict[str, int]]:
        name = str(next(numbers))
        return name, dict(searcher.suggest(name))

    def tell(name: Any, score: float | None) -> None:
        searcher.on_trial_complete(name, {"score": score} if score is not None else None, error=score is None)

    return _relaunch(surface, ranks, words, trials, ask, tell)


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


@contextmanager
def testbed_ranks(testbed: Testbed) -> Iterator[Ranks]:
    """The testbed as `run_session` wants it."""
    with build_testbed(testbed) as nodes:
        yield Ranks(
            nproc_per_node=1,
            node_prefixes=tuple(node.prefix for node in nodes),
            master_address=nodes[0].address,
            interface="eth0",
        )


def _keep_quiet(_: str) -> None:
    """What the local server tells people is of no interest here."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    folder = ROOT / "benchmarks" / "surfaces"
    parser.add_argument("--surface", type=Path, default=folder / "decoder-300mbit.json")
    parser.add_argument(
        "--ways", nargs="+", default=["advisor", "optuna"], choices=["advisor", "optuna", "ray"]
    )
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results" / "time_to_best.md")
    arguments = parser.parse_args()
    if reason := unavailable_because():
        raise SystemExit(f"no testbed: {reason}")
    surface = load_surface(arguments.surface)
    workload, _, rate = surface.name.rpartition("-")
    testbed = Testbed(nodes=2, rate=rate)
    words = PLANS[workload].words
    took: dict[str, list[float]] = {way: [] for way in arguments.ways}
    lines = [
        "# Time until a strategy within 2 % of the best is in hand", "",
        f"`python benchmarks/time_to_best.py {' '.join(sys.argv[1:])}`".replace(" `", "`"), "",
        f"{surface.name}, live on a testbed of two namespaces; {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} CPUs. Close means a regret of at most {max(_CLOSE, surface.truth_error):.1%}.", "",
        "| repeat | way | seconds until close | races or trials | seconds in all | last regret | strategy in hand |",
        "|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for repeat in range(arguments.repeats):
        for way in arguments.ways if repeat % 2 == 0 else reversed(arguments.ways):
            if way == "advisor":
                held = tune_with_advisor(surface, testbed, words, arguments.trials, repeat)
            else:
                with testbed_ranks(testbed) as ranks:
                    tune = tune_with_optuna if way == "optuna" else tune_with_ray
                    held = tune(surface, ranks, words, arguments.trials, repeat)
            since, regret = time_until_close(surface, held)
            in_all = held[-1][0]
            took[way].append(since if since is not None else math.inf)
            shown = f"{since:.0f}" if since is not None else "never"
            row = (
                f"| {repeat + 1} | {way} | {shown} | {len(held)} | {in_all:.0f} | {regret:.1%} | "
                f"{Changes(held[-1][1]).describe()} |"
            )
            print(row, flush=True)
            lines.append(row)
    lines.append("")
    for way in arguments.ways:
        if way == "advisor" or "advisor" not in took:
            continue
        ours, theirs = median(took["advisor"]), median(took[way])
        if math.isinf(theirs) and not math.isinf(ours):
            sentence = (
                f"{way} never held a close strategy to its end; the advisor did after {ours:.0f} s (median)."
            )
        else:
            sentence = f"Median: advisor {ours:.0f} s, {way} {theirs:.0f} s: {ours / theirs:.2f} of the time."
        print(sentence)
        lines.append(sentence)
    arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
