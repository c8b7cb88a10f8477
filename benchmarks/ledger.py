"""Blind races: does `advisor race` tell gains that are none, and does it find those that are there?

    python benchmarks/ledger.py --more 48 [--ways fresh hot] [--kinds compute] [--beside 4] [--until 18:10]
    python benchmarks/ledger.py --check        computes every verdict anew from its raw steps

A race is `benchmarks/workloads/blind.py` against itself under two settings files. Of each two races one, by dice, has
the same numbers in both (an equal pair), the other a B that is 1 to 10 % faster, by dice as well. *fresh* is `advisor
race` (a launch for each turn), *hot* is `advisor verify` of a knob by which the script is B in turns within one launch.
Those that sleep run `--beside` at a time, those that compute alone. Every race is a line of `races.jsonl.xz` in
`--folder`: the answer, the job and its launches with the time of every step, the load of the machine, and both files'
mean steps by the script's own clock. `--more` adds races that are not there yet, `--until` begins none after that time
of day.
"""

import argparse
import itertools
import json
import lzma
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from datetime import time as clock
from pathlib import Path

from ledger_figures import TICK_S, Row, check, compare, planted, tabulate

from advisor.local.book import LocalBook
from advisor.protocol.answers.carried import HEAD, Carried, write_line
from advisor.protocol.asked.jobs import Job
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.trials import JobHistory
from advisor.protocol.training.own_knobs import OwnKnob

ROOT = Path(__file__).parents[1]
BLIND = ROOT / "benchmarks" / "blind"
RACES = "races.jsonl.xz"
SCRIPT = "benchmarks/workloads/blind.py"
HOT = Carried(
    job_id="blind",
    changes=Changes({"side": "b"}),
    own=(OwnKnob(name="side", values=("a", "b"), effect=Effect.EXACT, hot=True),),
)
"""What `advisor verify` is given in a hot race: a knob that the script asks for in every step, which costs nothing."""
KINDS = ("wait", "loader", "stall", "threads", "allocation", "wait", "loader", "compute")
KEPT = (
    "steps", "samples_per_step", "wall_s", "period", "excluded_steps", "warmup_steps", "segments", "samples",
    "consumed", "not_consumed", "no_effect", "given_up", "switch_s", "per_rank_step_time_s",
)  # fmt: skip
"""What a block's result is kept with, besides its steps."""


def draw(number: int) -> tuple[Row, Row]:
    """Return the settings of A and B of a race, by dice of its number alone."""
    has_gain = random.Random(f"pair {number // 2}").random() < 0.5
    dice = random.Random(f"race {number}")
    extra = dice.uniform(0.01, 0.10)
    a = {
        "kind": dice.choice(KINDS),
        "steady_s": round(dice.uniform(0.02, 0.06), 4),
        "extra": round(extra, 4),
        "every": dice.randint(5, 20),
        "noise": dice.choice((0.0, 0.02, 0.1)),
        "luck": dice.choice((0.0, 0.0, 0.005)),
    }
    return a, {**a, "extra": 0.0 if has_gain == bool(number % 2) else a["extra"]}


def run_race(number: int, way: str, minutes: float) -> Row:
    """Run one race by the command line, in a data folder of its own, and clock its truth."""
    a, b = draw(number)
    with tempfile.TemporaryDirectory(prefix="blind-") as name:
        folder = Path(name)
        dice = random.Random(f"names {number}")
        paths = [folder / f"{dice.getrandbits(32):08x}.json" for _ in "ab"]
        for path, settings in zip(paths, (a, b), strict=True):
            path.write_text(json.dumps(settings))
        bin_folder = Path(sys.executable).parent
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")},
            "ADVISOR_DATA_DIR": str(folder / "data"), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
            "PATH": f"{bin_folder}:{os.environ['PATH']}",
        }  # fmt: skip
        ranks = (
            ["torchrun", "--standalone", "--nproc-per-node", "2"] if a["kind"] == "compute" else ["python"]
        )
        first, second = ([*ranks, SCRIPT, str(path)] for path in paths)
        options = ["--json", "--minutes", f"{minutes:g}"]
        words = ["race", *options, "--effect", "exact", " ".join(first), " ".join(second)]
        if way == "hot":
            carried = folder / "side.json"
            carried.write_text(json.dumps({HEAD: [write_line(HOT)]}))
            words = ["verify", str(carried), *options, "--", *first, "--hot", str(paths[1])]
        row: Row = {"number": number, "way": way, "a": a, "b": b, "at": datetime.now(UTC).isoformat()}
        row["load"], begun = [os.getloadavg()[0]], time.monotonic()
        done = _run([str(bin_folder / "advisor"), *words], environment)
        row["seconds"] = round(time.monotonic() - begun, 1)
        row["load"].append(os.getloadavg()[0])
        try:
            answer = json.loads(done.stdout)
        except ValueError:
            return {**row, "failed": done.stderr[-2000:]}
        gain = answer["gain"] or {}
        row |= {"verdict": answer["verdict"], "gain": [gain.get(name) for name in ("low", "likely", "high")]}
        row["gain"][1] = gain.get("likely", gain.get("ratio"))
        with LocalBook(folder / "data" / "advisor.db") as book:
            row |= keep(book.job(answer["job_id"]), book.history(answer["job_id"]))
        clocked = _run(
            [str(bin_folder / first[0]), *first[1:], "--clock", str(paths[1]), "--seconds", "8"], environment
        )
        row["clock"] = json.loads(clocked.stdout) if clocked.returncode == 0 else None
    return row


def _run(words: Sequence[str], environment: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def keep(job: Job, history: JobHistory) -> Row:
    """Return what a verdict is computed from: the job, and its history without what only people read."""
    told = history.model_dump(mode="json", exclude_defaults=True)
    for block in told.get("blocks", ()):
        block.pop("summary", None), block.pop("telemetry", None)
        if (result := block.get("result")) is not None:
            ticks = [round(seconds / TICK_S) for seconds in result["step_time_s"]]
            block["result"] = {name: result[name] for name in KEPT if name in result} | {"ticks": ticks}
    for session in told.get("sessions", ()):
        session.pop("log_tail", None)
    return {"job": job.model_dump(mode="json", exclude_defaults=True), "history": told}


def read_rows(path: Path) -> list[Row]:
    """Return everything that was kept in this file."""
    if not path.exists():
        return []
    with lzma.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def race_on(
    folder: Path,
    more: int,
    ways: Sequence[str],
    kinds: Sequence[str],
    beside: int,
    minutes: float,
    end: float,
) -> None:
    """Run the first `more` races of these kinds that are not there yet, and append each as it ends."""
    folder.mkdir(parents=True, exist_ok=True)
    lock, there = threading.Lock(), {(row["number"], row["way"]) for row in read_rows(folder / RACES)}
    of_kinds = (n for n in itertools.count() if draw(n)[0]["kind"] in kinds)
    missing = (n for n in of_kinds if any((n, way) not in there for way in ways))
    numbers = list(itertools.islice(missing, more))

    def run(number: int, way: str) -> None:
        if time.time() > end:
            return
        row = run_race(number, way, minutes)
        line = json.dumps(row, separators=(",", ":")).replace(f"{ROOT}/", "").replace(str(ROOT), ".") + "\n"
        with lock, (folder / RACES).open("ab") as file:
            file.write(lzma.compress(line.encode()))
        told = row["failed"][-300:] if "failed" in row else f"{row['verdict']} {row['gain']}"
        print(f"{number} {way} {row['a']['kind']} {planted(row):+.1%} {row['seconds']} s: {told}", flush=True)

    for alone in (False, True):
        with ThreadPoolExecutor(1 if alone else beside) as pool:
            wanted = [n for n in numbers if (draw(n)[0]["kind"] == "compute") == alone]
            asked = [(n, way) for n in wanted for way in ways if (n, way) not in there]
            list(pool.map(lambda pair: run(*pair), asked))
    squeeze(folder / RACES)


def squeeze(path: Path) -> None:
    """Write the lines of a file in one stream, in which what all of them share is kept once."""
    if path.exists():
        path.write_bytes(lzma.compress(lzma.decompress(path.read_bytes()), preset=9 | lzma.PRESET_EXTREME))


def next_time(text: str) -> float:
    """Return when it is next this time of day (HH:MM), as `time.time` has it."""
    now = datetime.now().astimezone()
    end = datetime.combine(now, clock.fromisoformat(text), now.tzinfo)
    return (end if end > now else end + timedelta(days=1)).timestamp()


def main() -> None:
    """Race, check, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--more", type=int, default=0)
    parser.add_argument("--ways", nargs="+", choices=("fresh", "hot"), default=["fresh"])
    parser.add_argument("--kinds", nargs="+", choices=sorted({*KINDS}), default=[*KINDS])
    parser.add_argument("--beside", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--until", type=next_time, default=float("inf"), metavar="HH:MM")
    parser.add_argument("--folder", type=Path, default=BLIND)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    if given.more:
        race_on(given.folder, given.more, given.ways, given.kinds, given.beside, given.minutes, given.until)
    rows = read_rows(given.folder / RACES)
    told = [row for row in rows if "failed" not in row]
    print(f"{len(rows)} races, {len(rows) - len(told)} of them without an answer.\n")
    if given.check:
        wrong = check(told)
        print("\n".join(wrong) or "Every verdict is what its steps say.")
        raise SystemExit(bool(wrong))
    if told:
        print("\n".join([*tabulate(told), "", *compare(told)]))


if __name__ == "__main__":
    main()
