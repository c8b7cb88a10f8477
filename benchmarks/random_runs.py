"""A week of `advisor run` in small: random trainings under random settings, each held against the bare script.

    python benchmarks/random_runs.py --seeds 0:2000 [--real 50] [--log LOG] [--keep FOLDER]

Each seed is a script and settings (`random_cases.py`). It trains twice, on ranks forked from a process that has loaded
torch: once by itself and once with the runtime in front, as `advisor run` puts it there; every `--real`-th seed by the
real `advisor run` and `torchrun`. What has to be the same: exit code, each rank's printed losses, files, and the
parameters of all ranks, before each update and at the end: where the bare script's ranks hold the same bits, so do they
under the settings, else they are no further apart. A loss is the same to the last bit where no setting may change the
order of a sum; else to a thousandth. Settings that change the arithmetic itself only have to print as many losses, all
of them numbers; under local SGD ranks have to be equal again as often as it averages. A run that takes longer than ten
times the bare one and 20 s hangs. Where something differs, the bare script trains once more: one that is not the same
twice proves nothing.
"""

import argparse
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from random_cases import Case, make_case
from random_verdicts import Trained, find_fault

from agent.production.plan import make_plan
from tests.distributed.runtime.forked_ranks import RankForge

_LAUNCH = Path(__file__).resolve().parents[1] / "agent" / "runtime" / "launch.py"
_BARE_S = 30.0
_TIMES, _MORE_S = 10.0, 20.0


@dataclass
class Outcome:
    """Of one seed."""

    case: Case
    bare: Trained
    under: Trained | None
    """None where there is nothing to compare: the bare script hangs, or is not the same twice."""
    fault: str = ""

    @property
    def was_in_force(self) -> bool:
        """Whether some setting was in force on every rank, with proof."""
        return self.under is not None and bool(
            re.search(r": [1-9]\d* of \d+ advised settings are in", self.under.log)
        )


class Runner:
    """Runs seeds one after another."""

    def __init__(self, real: int = 0) -> None:
        self._forge, self._real = RankForge(loads_runtime=True), real
        self._launch: Sequence[str] = ()

    def run(self, seed: int, case: Case | None = None, launch: Sequence[str] = (str(_LAUNCH),)) -> Outcome:
        """Train twice and compare; by the seed's own case where none is given. `launch`: what puts the runtime in."""
        self._launch = launch
        case = case or make_case(seed)
        real = bool(self._real) and seed % self._real == 0
        with tempfile.TemporaryDirectory(prefix="random-run-") as name:
            folders = [Path(name) / which for which in ("bare", "under")]
            for folder in folders:
                folder.mkdir()
                (folder / "train.py").write_text(case.script)
            train = self._train_really if real else self._train
            bare = train(case, folders[0], _BARE_S, is_bare=True)
            if bare.has_hung:
                return Outcome(case, bare, None)
            under = train(case, folders[1], _TIMES * bare.seconds + _MORE_S, is_bare=False)
            fault = find_fault(case, bare, under)
            if fault:
                again = Path(name) / "again"
                again.mkdir()
                (again / "train.py").write_text(case.script)
                if find_fault(case, bare, train(case, again, _TIMES * bare.seconds + _MORE_S, is_bare=True)):
                    return Outcome(case, bare, None)
        return Outcome(case, bare, under, fault)

    def close(self) -> None:
        """End the process that ranks are forked from."""
        self._forge.close()

    def _train(self, case: Case, folder: Path, most_s: float, *, is_bare: bool) -> Trained:
        environment = {**_clean(), "OUT": str(folder)}
        words = [str(folder / "train.py")]
        if not is_bare:
            words = [*self._launch, *words]
            settings = [f"{knob}={value}" for knob, value in case.settings.items()]
            environment = make_plan(None, settings, ()).build_environment(environment, None, None)
            environment.pop("PYTHONPATH", None)
        start_s = time.monotonic()
        code, log = self._forge.launch(words, environment, folder, case.ranks, most_s)
        return _read(code, log, time.monotonic() - start_s, folder)

    def _train_really(self, case: Case, folder: Path, most_s: float, *, is_bare: bool) -> Trained:
        words = ["torchrun", "--standalone", "--nproc-per-node", str(case.ranks), str(folder / "train.py")]
        if not is_bare:
            sets = [word for knob, value in case.settings.items() for word in ("--set", f"{knob}={value}")]
            words = [sys.executable, "-P", "-m", "agent.production", *sets, "--", *words]
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**_clean(), "OUT": str(folder), "PATH": path, "PYTHONPATH": ""}
        start_s = time.monotonic()
        process = subprocess.Popen(
            words, cwd=_LAUNCH.parents[2] if not is_bare else folder, env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip
        try:
            log, _ = process.communicate(timeout=most_s)
        except subprocess.TimeoutExpired:
            process.terminate()
            log, _ = process.communicate()
            log += "\n[timed out]"
        return _read(process.returncode, log, time.monotonic() - start_s, folder)


def _read(code: int, log: str, seconds: float, folder: Path) -> Trained:
    told: dict[str, list[str]] = {}
    for line in log.splitlines():
        if line.startswith("= "):
            _, rank, rest = line.split(" ", 2)
            told.setdefault(rank, []).append(rest)
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("*.pt"))}
    parameters = {p.stem: np.fromfile(p) for p in folder.glob("*.parameters")}
    return Trained(code, log, seconds, told, files, parameters)


def _clean() -> dict[str, str]:
    names = ("ADVISOR_", "RANK", "WORLD_SIZE", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}


def describe(outcome: Outcome) -> dict[str, Any]:
    """One line of the log."""
    case, under = outcome.case, outcome.under
    return {
        "seed": case.seed,
        "kind": case.kind,
        "code": outcome.bare.code,
        "compared": under is not None,
        "in_force": outcome.was_in_force,
        "fault": outcome.fault,
        "seconds": [round(outcome.bare.seconds, 2), round(under.seconds, 2) if under is not None else None],
        "settings": case.settings,
        "script": case.features,
    }


def summarise(lines: list[dict[str, Any]]) -> str:
    """Every fault, then the counts by kind."""
    told = []
    for line in lines:
        if line["fault"]:
            settings = " ".join(f"{knob}={value}" for knob, value in line["settings"].items())
            told.append(
                f"seed {line['seed']} ({line['kind']}): {line['fault']} ({settings}; {' '.join(line['script'])})"
            )
    heads = ("seeds", "compared", "bare fails", "in force", "faults")
    told.append("".join([f"{'kind':16}", *(f"{head:>11}" for head in heads)]))
    for kind in [*sorted({line["kind"] for line in lines}), "all"]:
        own = [line for line in lines if kind in (line["kind"], "all")]
        counts = (
            len(own),
            sum(line["compared"] for line in own),
            sum(line["code"] != 0 for line in own),
            sum(line["in_force"] for line in own),
            sum(bool(line["fault"]) for line in own),
        )
        told.append("".join([f"{kind:16}", *(f"{count:11}" for count in counts)]))
    return "\n".join(told)


def main() -> None:
    """Run the seeds that are not in the log yet, then summarise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", default="0:100", help="first:end, or one number")
    parser.add_argument(
        "--real", type=int, default=0, help="every so many by the real advisor run and torchrun"
    )
    parser.add_argument(
        "--log", type=Path, help="a line of JSON for each seed; seeds in it are not run again"
    )
    parser.add_argument("--again", action="store_true", help="run the log's faults again; later lines count")
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
    parser.add_argument("--keep", type=Path, help="where to leave the scripts and logs of faults")
    parser.add_argument("--seconds", type=float, default=math.inf, help="most seconds for all")
    parser.add_argument("--show", action="store_true", help="print the script, the settings and both logs")
    parser.add_argument("--output", type=Path, help="add the command and its output to this page")
    arguments = parser.parse_args()
    found: dict[int, dict[str, Any]] = {}
    if arguments.log and arguments.log.exists():
        read = map(json.loads, arguments.log.read_text().splitlines())
        found = {line["seed"]: line for line in read}
    first, _, end = arguments.seeds.partition(":")
    asked = range(int(first), int(end) if end else int(first) + 1)
    seeds = iter([s for s in asked if s not in found or (arguments.again and found[s]["fault"])])
    deadline, lock = time.monotonic() + arguments.seconds, threading.Lock()

    def work() -> None:
        runner = Runner(arguments.real)
        while time.monotonic() < deadline:
            with lock:
                seed = next(seeds, None)
            if seed is None:
                break
            outcome = runner.run(seed)
            with lock:
                found[seed] = describe(outcome)
                _tell(outcome, found[seed], arguments)
        runner.close()

    with ThreadPoolExecutor(arguments.jobs) as pool:
        for job in [pool.submit(work) for _ in range(arguments.jobs)]:
            job.result()
    told = summarise(list(found.values()))
    print(told)
    if arguments.output:
        with arguments.output.open("a") as page:
            page.write(f"\n```\npython {' '.join(sys.argv)}\n\n{told}\n```\n")
    sys.exit(1 if any(line["fault"] for line in found.values()) else 0)


def _tell(outcome: Outcome, line: dict[str, Any], arguments: argparse.Namespace) -> None:
    if outcome.fault:
        print(summarise([line]).splitlines()[0], flush=True)
    if arguments.log:
        with arguments.log.open("a") as log:
            log.write(json.dumps(line) + "\n")
    if arguments.show:
        print(outcome.case.script, outcome.case.settings, outcome.bare.log, sep="\n")
        print("-" * 40, outcome.under.log if outcome.under else "", sep="\n")
    if outcome.fault and arguments.keep:
        _keep(outcome, arguments.keep / str(line["seed"]))


def _keep(outcome: Outcome, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(outcome.case.script)
    (folder / "bare.log").write_text(outcome.bare.log)
    (folder / "under.log").write_text(outcome.under.log if outcome.under else "")


if __name__ == "__main__":
    main()
