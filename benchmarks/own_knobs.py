"""How soon is the best of what a user named found? 16 scripts that sleep, by us and by tuners that relaunch.

python benchmarks/own_knobs.py                       # all cases, four side by side, five minutes for each tuner
python benchmarks/own_knobs.py --cases middle dies --beside 1 --times 5

A tuner gets the same seconds as our job; its answer is the fastest combination that it saw. Two per cent from the best
count as the best. A grid launches the sound combinations in their order; unsound ones cost TPE nothing.
"""

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import optuna

from advisor.protocol.expressions import holds

SCRIPT = Path(__file__).with_name("workloads") / "known_table.py"
LAUNCH = ("torchrun", "--nproc-per-node", "2")
NEAR = 1.02
STEPS = 40
"""Steps of a launch of a tuner that relaunches, five of them not timed."""
LONGEST_S = 60.0
"""Seconds after which such a tuner gives a launch up."""

Values = Mapping[str, object]
Lasts = float | str
Ask = tuple[dict[str, object], Callable[[float], object]]
"""A combination to launch, and who is told what a step of it lasted, in milliseconds."""


@dataclass(frozen=True)
class Case:
    """Options, what must hold, and what a step lasts; the first value of each option is today's."""

    name: str
    own: Mapping[str, tuple[object, ...]]
    lasts: Callable[[Values], Lasts]
    require: str = ""

    def list_sound(self) -> list[dict[str, object]]:
        """Today's combination first."""
        points = itertools.product(*self.own.values())
        found = [dict(zip(self.own, point, strict=True)) for point in points]
        return [values for values in found if not self.require or holds(self.require, values)]

    def time_ms(self, values: Values) -> float:
        """Infinity where it does not run."""
        found = self.lasts(values)
        return found if isinstance(found, float) else float("inf")

    @property
    def best_ms(self) -> float:
        """Of all sound combinations."""
        return min(map(self.time_ms, self.list_sound()))


def by(name: str, **lasts: Lasts) -> Callable[[Values], Lasts]:
    """What a step lasts by one option: `by("size", _1=40.0)`."""
    return lambda values: lasts[f"_{values[name]}"]


def fixed_and_each(values: Values) -> float:
    micro, accumulate = int(str(values["micro"])), int(str(values["acc"]))
    return accumulate * (4.0 + 0.35 * micro**1.6)


CASES = (
    Case("middle", {"micro": (1, 2, 4, 8), "acc": (8, 4, 2, 1)},
         by("micro", _1=43.0, _2=26.0, _4=18.6, _8=27.5), "micro * acc == 8"),
    Case("upper end", {"size": (1, 2, 4, 8)}, by("size", _1=40.0, _2=34.0, _4=29.0, _8=24.0)),
    Case("lower end", {"size": (8, 4, 2, 1)}, by("size", _8=40.0, _4=36.0, _2=31.0, _1=25.0)),
    Case("middle of five", {"size": (1, 2, 4, 8, 16)}, by("size", _1=40.0, _2=31.0, _4=22.0, _8=30.0, _16=44.0)),
    Case("two", {"engine": ("plain", "fused")}, by("engine", _plain=40.0, _fused=30.0)),
    Case("words", {"engine": ("a", "b", "c", "d")}, by("engine", _a=35.0, _b=39.0, _c=26.0, _d=33.0)),
    Case("behind a constraint", {"micro": (1, 2, 4, 8), "ac": ("none", "full")},
         lambda v: {1: 44.0, 2: 32.0, 4: 24.0, 8: 19.0}[int(str(v["micro"]))] * (1.3 if v["ac"] == "full" else 1.0),
         "micro < 8 or ac == 'full'"),
    Case("dies", {"size": (1, 2, 4, 8)}, by("size", _1=40.0, _2=32.0, _4=24.0, _8="die")),
    Case("hangs", {"size": (1, 2, 4, 8)}, by("size", _1=40.0, _2="hang", _4=24.0, _8=30.0)),
    Case("dies in the middle", {"size": (1, 2, 3, 4, 5)}, by("size", _1=40.0, _2=36.0, _3="die", _4=27.0, _5=33.0)),
    Case("nine", {"a": (1, 2, 3), "b": (1, 2, 3)},
         lambda v: 24.0 + 8.0 * (abs(int(str(v["a"])) - 2) + abs(int(str(v["b"])) - 2))),
    Case("corner of sixteen", {"a": (1, 2, 4, 8), "b": (1, 2, 4, 8)},
         lambda v: 20.0 + 20.0 / int(str(v["a"])) + 10.0 / int(str(v["b"]))),
    Case("only together", {"a": ("off", "on"), "b": ("off", "on"), "c": ("off", "on")},
         lambda v: 25.0 if (v["a"], v["b"]) == ("on", "on") else 36.0 + (v["c"] == "on")),
    Case("twenty-four", {"micro": (1, 2, 4, 8), "acc": (8, 6, 4, 3, 2, 1)},
         lambda v: fixed_and_each(v) * 8.0 / (int(str(v["micro"])) * int(str(v["acc"])))),
    Case("nothing to gain", {"size": (1, 2, 3)}, by("size", _1=30.0, _2=30.0, _3=30.0)),
    Case("all others slower", {"size": (1, 2, 4), "engine": ("a", "b")},
         lambda v: 28.0 * (1.0 + 0.2 * (int(str(v["size"])) - 1)) * (1.3 if v["engine"] == "b" else 1.0)),
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """What one tuner answered on one case."""

    case: str
    tuner: str
    chosen: dict[str, object]
    is_best: bool
    is_wrong: bool
    """A change that is slower than today's by more than 2 %, or not faster where it was told as proved."""
    first_s: float | None
    """Seconds until a combination within 2 % of the best was measured."""
    all_s: float


def judge(case: Case, tuner: str, chosen: dict[str, object], proved: bool, first_s: float | None, all_s: float
          ) -> Found:  # fmt: skip
    """Hold an answer against the table."""
    today = case.time_ms(case.list_sound()[0])
    ms = case.time_ms(chosen)
    wrong = ms > NEAR * today or (proved and ms > today / 1.001 and chosen != case.list_sound()[0])
    return Found(case.name, tuner, chosen, ms <= NEAR * case.best_ms, wrong, first_s, all_s)


def lay_out(case: Case, folder: Path, times: float) -> None:
    """Put the script and its table there."""
    (folder / SCRIPT.name).write_text(SCRIPT.read_text())
    points = itertools.product(*case.own.values())
    lasts = {}
    for point in points:
        found = case.lasts(dict(zip(case.own, point, strict=True)))
        lasts[",".join(map(str, point))] = found if isinstance(found, str) else found * times
    (folder / "table.json").write_text(json.dumps({"names": list(case.own), "lasts": lasts}))


def command_of(values: Values) -> list[str]:
    return [*LAUNCH, SCRIPT.name, *(w for name, value in values.items() for w in (f"--{name}", str(value)))]


def tune(case: Case, folder: Path, seconds: float) -> Found:
    """Our own job; when a combination was measured is read from its events."""
    today = case.list_sound()[0]
    own = [
        w
        for name, values in case.own.items()
        for w in ("--try", f"{name}={','.join(map(str, values))}:exact")
    ]
    require = ["--require", case.require] if case.require else []
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "advisor", "tune", "-v", "--json", "--minutes", str(seconds / 60), "--output",
         "advice", *own, *require, "--", *command_of(today)],
        cwd=folder, env={**os.environ, "ADVISOR_DATA_DIR": f"{folder}/data", "NO_COLOR": "1"}, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    all_s = time.monotonic() - began
    if done.returncode != 0:
        raise SystemExit(f"{case.name}: advisor failed:\n{done.stderr[-3000:]}")
    advice = json.loads(done.stdout)
    changes = advice["changes"] or advice.get("candidate") or {}
    chosen = {name: changes.get(name, today[name]) for name in case.own}
    proved = advice["verdict"] == "change"
    return judge(case, "ours", chosen, proved, read_first(case, done.stderr), all_s)


def read_first(case: Case, told: str) -> float | None:
    """When the trial of a combination near the best was done, by the job's clock."""
    today = case.list_sound()[0]
    if case.time_ms(today) <= NEAR * case.best_ms:
        return 0.0
    near = [v for v in case.list_sound() if case.time_ms(v) <= NEAR * case.best_ms]
    names = {", ".join(f"{name} {value}" for name, value in v.items() if value != today[name]) for v in near}
    numbers = {
        m[1]
        for m in re.finditer(r"Trial (\d+) \(search\): Combination [^:]*: (.*)\.\n", told)
        if m[2] in names
    }
    for minutes, done_s, number in re.findall(r"(\d+):(\d\d)  Trial (\d+) is done", told):
        if number in numbers:
            return 60.0 * int(minutes) + int(done_s)
    return None


def launch(values: Values, folder: Path, left_s: float) -> float:
    """Milliseconds of a step by the script's own clock; infinity where it died or took too long."""
    process = subprocess.Popen(
        [*command_of(values), "--steps", str(STEPS)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        told, _ = process.communicate(timeout=max(1.0, min(LONGEST_S, left_s)))
    except subprocess.TimeoutExpired:
        # torchrun ends its ranks, which have sessions of their own, before it goes.
        process.send_signal(signal.SIGTERM)
        process.communicate()
        return float("inf")
    found = re.search(r"step_ms ([\d.]+)", told)
    return float(found[1]) if found else float("inf")


def relaunch(case: Case, folder: Path, seconds: float, tuner: str, ask: Callable[[], Iterator[Ask]]) -> Found:
    """A tuner that launches each combination anew, until its seconds are over or it has no other."""
    began, seen = time.monotonic(), list[tuple[float, dict[str, object]]]()
    first_s: float | None = None
    for values, tell in ask():
        left_s = seconds - (time.monotonic() - began)
        if left_s <= 0:
            break
        ms = launch(values, folder, left_s)
        tell(ms)
        seen.append((ms, values))
        if first_s is None and case.time_ms(values) <= NEAR * case.best_ms and ms < float("inf"):
            first_s = time.monotonic() - began
    chosen = min(seen, key=lambda one: one[0])[1] if seen else case.list_sound()[0]
    return judge(case, tuner, chosen, False, first_s, time.monotonic() - began)


def ask_grid(case: Case) -> Iterator[Ask]:
    for values in case.list_sound():
        yield values, lambda _: None


def ask_tpe(case: Case) -> Iterator[Ask]:
    """Optuna's TPE, today's first; what is unsound or was seen before costs no launch."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, n_startup_trials=3))
    sound = case.list_sound()
    study.enqueue_trial({name: str(value) for name, value in sound[0].items()})
    known: dict[str, float] = {}
    for _ in range(2_000):
        trial = study.ask()
        typed = {n: trial.suggest_categorical(n, [str(v) for v in values]) for n, values in case.own.items()}
        values = {n: next(v for v in case.own[n] if str(v) == typed[n]) for n in case.own}
        if values not in sound:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        key = json.dumps(typed)
        if key in known:
            study.tell(trial, known[key])
            continue

        def tell(ms: float, key: str = key, trial: optuna.Trial = trial) -> None:
            known[key] = min(ms, 1e6)
            study.tell(trial, known[key])

        yield values, tell
        if len(known) == len(sound):
            return


def run_case(case: Case, seconds: float, times: float) -> list[Found]:
    """Every tuner on one case, one after the other."""
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lay_out(case, folder, times)
        for run in (
            lambda: tune(case, folder, seconds),
            lambda: relaunch(case, folder, seconds, "grid", lambda: ask_grid(case)),
            lambda: relaunch(case, folder, seconds, "TPE", lambda: ask_tpe(case)),
        ):
            one = run()
            found.append(one)
            first = "never" if one.first_s is None else f"{one.first_s:.0f} s"
            mark = "best" if one.is_best else "WRONG" if one.is_wrong else "not the best"
            told = f"{one.case:20} {one.tuner:5} {mark:13} first {first:>6}  all {one.all_s:4.0f} s"
            print(f"{told}  {one.chosen}", flush=True)
    return found


def main() -> None:
    """Print a line for each case and tuner, and a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="*", help="Their names; all without.")
    parser.add_argument(
        "--seconds", type=float, default=300.0, help="Budget of a job, and of each other tuner."
    )
    parser.add_argument(
        "--times", type=float, default=1.0, help="Factor of all sleeps: longer for a busy machine."
    )
    parser.add_argument("--beside", type=int, default=4, help="Cases that run side by side.")
    asked = parser.parse_args()
    # The launcher of the Python that runs this, as our job finds it.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    cases = [case for case in CASES if not asked.cases or case.name in asked.cases]
    with ThreadPoolExecutor(asked.beside) as pool:
        found = [
            one for each in pool.map(lambda c: run_case(c, asked.seconds, asked.times), cases) for one in each
        ]
    print(
        "\n| tuner | cases | best named | wrong change | seconds to the best, mean where found |\n|---|---|---|---|---|"
    )
    for tuner in dict.fromkeys(one.tuner for one in found):
        of = [one for one in found if one.tuner == tuner]
        firsts = [one.first_s for one in of if one.first_s]
        mean = f"{sum(firsts) / len(firsts):.0f} ({len(firsts)})" if firsts else "–"
        print(
            f"| {tuner} | {len(of)} | {sum(o.is_best for o in of)} | {sum(o.is_wrong for o in of)} | {mean} |"
        )


if __name__ == "__main__":
    main()
