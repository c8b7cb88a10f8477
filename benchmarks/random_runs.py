"""A week of `advisor run` in small: random trainings under random settings, each held against the bare script.

    python benchmarks/random_runs.py --seeds 0:2000 [--real 50] [--log LOG] [--keep FOLDER]

Each seed is a script and settings (`random_scripts.py`). It trains twice, on ranks forked from a process that has
loaded torch: once by itself and once with the runtime in front, as `advisor run` puts it there; every `--real`-th seed
by the real `advisor run` and `torchrun`. What has to be the same: the exit code, each rank's printed losses, the files.
A loss is the same to the last bit where no setting may change the order of a sum; else to a thousandth. Settings that
change the arithmetic itself only have to print as many losses, all of them numbers. A run that takes longer than ten
times the bare one and 20 s hangs.
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
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from random_scripts import Case, make_case

from agent.production.plan import make_plan
from tests.distributed.runtime.forked_ranks import RankForge

_LAUNCH = Path(__file__).resolve().parents[1] / "agent" / "runtime" / "launch.py"
_BARE_S = 30.0
_TIMES, _MORE_S = 10.0, 20.0
_CLOSE, _CLOSE_BELOW = 1e-3, 1e-5


@dataclass
class Trained:
    """What one run left."""

    code: int
    log: str
    seconds: float
    told: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @property
    def has_hung(self) -> bool:
        """Whether it had to be ended."""
        return "[timed out]" in self.log


@dataclass
class Outcome:
    """Of one seed."""

    case: Case
    bare: Trained
    under: Trained | None
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

    def run(self, seed: int, case: Case | None = None) -> Outcome:
        """Train twice and compare; by the seed's own case where none is given."""
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
        return Outcome(case, bare, under, find_fault(case, bare, under))

    def close(self) -> None:
        """End the process that ranks are forked from."""
        self._forge.close()

    def _train(self, case: Case, folder: Path, most_s: float, *, is_bare: bool) -> Trained:
        environment = {**_clean(), "OUT": str(folder)}
        words = [str(folder / "train.py")]
        if not is_bare:
            words.insert(0, str(_LAUNCH))
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


def find_fault(case: Case, bare: Trained, under: Trained) -> str:
    """What is not the same, in a few words; "" where all is."""
    if under.has_hung:
        return "hangs"
    if (bare.code == 0) != (under.code == 0):
        return f"exit code {bare.code} became {under.code}"
    if bare.code == 0 and "runtime failed, not the script" in under.log:
        return "a lever failed"
    for rank in sorted(bare.told.keys() | under.told.keys()):
        fault = _compare(case, bare.told.get(rank, []), under.told.get(rank, []), whole=bare.code == 0)
        if fault:
            return f"rank {rank}: {fault}"
    if bare.code == 0 and bare.files.keys() != under.files.keys():
        return f"files {sorted(bare.files)} became {sorted(under.files)}"
    if bare.code == 0 and case.is_bitwise and bare.files != under.files:
        return "a file's content differs"
    return ""


def _compare(case: Case, before: list[str], after: list[str], *, whole: bool) -> str:
    """Where a rank fails, torchrun ends the others wherever they are."""
    if whole and len(before) != len(after):
        return f"{len(before)} lines became {len(after)}"
    for first, second in zip(before, after, strict=False):
        if not _are_same(case, first.split(), second.split()):
            return f"{first!r} became {second!r}"
    return ""


def _are_same(case: Case, before: list[str], after: list[str]) -> bool:
    if before == after:
        return True
    if case.is_bitwise or len(before) != len(after) or before[0] != after[0]:
        return False
    try:
        was, now = float(before[1]), float(after[1])
    except (IndexError, ValueError):
        return False
    if not case.is_exact:
        return math.isfinite(now) or not math.isfinite(was)
    return math.isclose(was, now, rel_tol=_CLOSE, abs_tol=_CLOSE_BELOW) or (
        math.isnan(was) and math.isnan(now)
    )


def _read(code: int, log: str, seconds: float, folder: Path) -> Trained:
    told: dict[str, list[str]] = {}
    for line in log.splitlines():
        if line.startswith("= "):
            _, rank, rest = line.split(" ", 2)
            told.setdefault(rank, []).append(rest)
    files = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.glob("*.pt"))}
    return Trained(code, log, seconds, told, files)


def _clean() -> dict[str, str]:
    names = ("ADVISOR_", "RANK", "WORLD_SIZE", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(names)}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}


def describe(outcome: Outcome) -> dict[str, Any]:
    """One line of the log."""
    case, under = outcome.case, outcome.under
    return {
        "seed": case.seed,
        "code": outcome.bare.code,
        "compared": under is not None,
        "in_force": outcome.was_in_force,
        "fault": outcome.fault,
        "seconds": [round(outcome.bare.seconds, 2), round(under.seconds, 2) if under is not None else None],
        "settings": case.settings,
        "script": case.features,
    }


def summarise(lines: list[dict[str, Any]]) -> str:
    """Every fault, then the counts."""
    told = []
    for line in lines:
        if line["fault"]:
            settings = " ".join(f"{knob}={value}" for knob, value in line["settings"].items())
            told.append(f"seed {line['seed']}: {line['fault']} ({settings}; {' '.join(line['script'])})")
    compared = [line for line in lines if line["compared"]]
    told.append(
        f"{len(lines)} seeds: {len(compared)} compared, whose bare script ended well in "
        f"{sum(line['code'] == 0 for line in compared)} and failed in {sum(line['code'] != 0 for line in compared)}; "
        f"{len(lines) - len(compared)} not, because the bare script hangs; settings in force and proved in "
        f"{sum(line['in_force'] for line in lines)}; faults {sum(bool(line['fault']) for line in lines)}."
    )
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
    parser.add_argument("--keep", type=Path, help="where to leave the scripts and logs of faults")
    parser.add_argument("--seconds", type=float, default=math.inf, help="most seconds for all")
    parser.add_argument("--show", action="store_true", help="print the script, the settings and both logs")
    parser.add_argument("--output", type=Path, help="add the command and its output to this page")
    arguments = parser.parse_args()
    lines: list[dict[str, Any]] = []
    if arguments.log and arguments.log.exists():
        lines = [json.loads(line) for line in arguments.log.read_text().splitlines()]
    done = {line["seed"] for line in lines}
    first, _, end = arguments.seeds.partition(":")
    runner, start_s = Runner(arguments.real), time.monotonic()
    for seed in range(int(first), int(end) if end else int(first) + 1):
        if time.monotonic() - start_s > arguments.seconds:
            break
        if seed in done:
            continue
        outcome = runner.run(seed)
        lines.append(describe(outcome))
        if outcome.fault:
            print(summarise(lines[-1:]).splitlines()[0], flush=True)
        if arguments.log:
            with arguments.log.open("a") as log:
                log.write(json.dumps(lines[-1]) + "\n")
        if arguments.show:
            print(outcome.case.script, outcome.case.settings, outcome.bare.log, sep="\n")
            print("-" * 40, outcome.under.log if outcome.under else "", sep="\n")
        if outcome.fault and arguments.keep:
            _keep(outcome, arguments.keep / str(seed))
    runner.close()
    told = summarise(lines)
    print(told)
    if arguments.output:
        with arguments.output.open("a") as page:
            page.write(f"\n```\npython {' '.join(sys.argv)}\n\n{told}\n```\n")
    sys.exit(1 if any(line["fault"] for line in lines) else 0)


def _keep(outcome: Outcome, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(outcome.case.script)
    (folder / "bare.log").write_text(outcome.bare.log)
    (folder / "under.log").write_text(outcome.under.log if outcome.under else "")


if __name__ == "__main__":
    main()
