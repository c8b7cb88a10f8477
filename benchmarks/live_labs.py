"""Live labs over MCP: of the gains that a lab tells an agent, how many are none, and which ideas that help are found?

    python benchmarks/live_labs.py --labs 10 --ideas 8 [--beside 4] [--minutes 3] [--until 18:10]
    python benchmarks/live_labs.py --check      computes every verdict, and every lab from it, anew from the raw steps

A lab's baseline is `benchmarks/workloads/blind.py` under a settings file. Its ideas are further files under names by
dice: one or two, at places by dice, make it 5 to 10 % faster, the others hold the baseline's own numbers. The agent is
the official SDK's client of `advisor mcp` over a pipe: for each idea it calls `race`, then `lab_status`. All kinds
sleep, so that `--beside` labs run at a time. Every lab is a line of `labs.jsonl.xz` in `--folder`: its ledger as it was
written, and of each race the job and its launches with the time of every step. `--labs` adds labs that are not there
yet; after `--until` no lab and no race is begun. An agent without us, which keeps what was faster in the first launch
of each side, is computed from the same launches.
"""

import argparse
import json
import lzma
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

import anyio
from ledger import BLIND, ROOT, SCRIPT, draw, keep, next_time, read_rows, squeeze
from ledger_figures import Row, bound, compute_again, list_launches
from mcp import Client, StdioServerParameters

from advisor.lab.ledger import Ledger
from advisor.lab.rules import describe_lab, judge, read_lab
from advisor.local.book import LocalBook
from advisor.protocol.gains import spell_share
from advisor.protocol.lab import Entry, Started

PROGRAMS = Path(sys.executable).parent
EXTRA = 0.12
"""The baseline's planted share of a step: what helps takes of it."""


def draw_lab(number: int, ideas: int) -> tuple[Row, list[float]]:
    """Return the baseline's settings, and by how much each idea is faster, by dice of the lab's number alone."""
    dice = random.Random(f"lab {number}")
    base = next(a for a in (draw(dice.getrandbits(32))[0] for _ in count()) if a["kind"] != "compute")
    helping = dice.sample(range(ideas), min(ideas, dice.randint(1, 2)))
    gains = [dice.uniform(0.05, 0.10) if place in helping else 0.0 for place in range(ideas)]
    return base | {"extra": EXTRA}, gains


async def ask_ideas(
    folder: Path, commands: Sequence[str], minutes: float, end: float, environment: dict[str, str]
) -> list[Any]:
    """Ask every idea over a pipe, one after the other; return what the tool answered, as its JSON."""
    told = []
    server = StdioServerParameters(
        command=str(PROGRAMS / "advisor"), args=["mcp"], env=environment, cwd=folder
    )
    async with Client(server) as client:
        for place, command in enumerate(commands):
            if time.time() > end:
                break
            asked = {"lab": ".", "idea": f"settings {place}", "by": "dice", "b": command}
            found = await client.call_tool("race", asked | {"effect": "exact", "minutes": minutes})
            if found.is_error:
                raise RuntimeError(found.content[0].text)
            answer = found.structured_content
            status = (await client.call_tool("lab_status", {"lab": "."})).structured_content
            if (answer["lab"]["number"] in status["told"]) != answer["lab"]["is_told"] or status["open"]:
                raise RuntimeError(f"lab_status says another thing than race: {status} {answer['lab']}")
            told.append(answer)
    return told


def run_lab(number: int, ideas: int, minutes: float, end: float) -> Row:
    """Open a lab in a folder and with a data folder of its own, ask its ideas, and keep it."""
    base, gains = draw_lab(number, ideas)
    row: Row = {"number": number, "base": base, "gains": gains, "at": datetime.now(UTC).isoformat()}
    with tempfile.TemporaryDirectory(prefix="live-lab-") as name:
        folder, data = Path(name, "run"), Path(name, "data")
        folder.mkdir()
        shutil.copy(ROOT / SCRIPT, folder / "train.py")
        dice = random.Random(f"names {number}")
        commands = []
        for gain in (0.0, *gains):
            path = folder / f"{dice.getrandbits(32):08x}.json"
            path.write_text(json.dumps(base | {"extra": (1.0 + EXTRA) / (1.0 + gain) - 1.0}))
            commands.append(f"python train.py {path.name}")
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ADVISOR_")},
            "ADVISOR_DATA_DIR": str(data), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1",
            "PATH": f"{PROGRAMS}:{os.environ['PATH']}",
        }  # fmt: skip
        opened = ["lab", "open", f"--minutes={2 * ideas * minutes:g}", f"--ideas={ideas}", commands[0]]
        row["load"], begun = [os.getloadavg()[0]], time.monotonic()
        subprocess.run(
            [PROGRAMS / "advisor", *opened], cwd=folder, env=environment, capture_output=True, check=True
        )
        try:
            told = anyio.run(ask_ideas, folder, commands[1:], minutes, end, environment)
        except Exception as error:  # an exception group of the client's tasks, and whatever it holds
            return row | {"failed": _spell(error), "ledger": Ledger(folder).path.read_text()}
        row["seconds"], row["ledger"] = round(time.monotonic() - begun, 1), Ledger(folder).path.read_text()
        row["load"].append(os.getloadavg()[0])
        row["races"] = []
        with LocalBook(data / "advisor.db") as book:
            for answer in told:
                gain = answer["gain"] or {}
                ends = {
                    "verdict": answer["verdict"],
                    "gain": [gain.get(name) for name in ("low", "likely", "high")],
                }
                job = answer["job_id"]
                row["races"].append(
                    {"number": answer["lab"]["number"], "way": f"lab {number} race"}
                    | ends
                    | keep(book.job(job), book.history(job))
                )
    return row


def _spell(error: BaseException) -> str:
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return " ".join(map(_spell, inner)) or str(error)[-2000:]


def check_lab(row: Row) -> list[str]:
    """Return a sentence for whatever the kept steps, or the lab's rules, do not say as the ledger has it."""
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        ledger = Ledger(Path(name))
        ledger.path.parent.mkdir()
        ledger.path.write_text(row["ledger"])
        lab = ledger.read()  # raises where a line is not what was written
    entries = [Entry.model_validate_json(line) for line in row["ledger"].splitlines()]
    for place, entry in enumerate(entries):
        if isinstance(entry.event, Started) and entry.event.error != read_lab(entries[:place]).next_error:
            wrong.append(
                f"lab {row['number']} race {entry.event.race}: its error is not what the rules allow"
            )
    for race in row["races"]:
        started, ended = lab.started[race["number"]], lab.ended[race["number"]]
        verdict, gain = compute_again(race)
        if (
            (found := ended.answer) is None
            or found.job_id != race["job"]["id"]
            or judge(lab, started, found)[0] != ended.is_told
            or verdict != found.verdict.value
            or not _is_close(gain, [found.gain.low, found.gain.likely, found.gain.high] if found.gain else [])
        ):
            wrong.append(
                f"lab {row['number']} race {race['number']}: told {ended.sentence} Its steps say {verdict} {gain}"
            )
    return wrong


def _is_close(found: Sequence[float | None], told: Sequence[float]) -> bool:
    known = [end for end in found if end is not None]
    return len(known) == len(told) and all(abs(a - b) < 1e-3 * b for a, b in zip(known, told, strict=True))


def count_kept(row: Row, least: float | None) -> list[int]:
    """Return the ideas kept: those that the lab told (None), or what was faster by `least` in its first launches."""
    kept = []
    for place, race in enumerate(row["races"]):
        firsts = [
            next((one.step_s for one in list_launches(race) if one.is_b == b), None) for b in (False, True)
        ]
        if least is None:
            is_kept = race["number"] in read_told(row)
        else:
            is_kept = bool(firsts[0] and firsts[1]) and firsts[0] / firsts[1] > 1.0 + least
        kept += [place] if is_kept else []
    return kept


def read_told(row: Row) -> list[int]:
    """Return the races that the lab told as gains."""
    return read_lab([Entry.model_validate_json(line) for line in row["ledger"].splitlines()]).told


def tabulate(rows: Sequence[Row]) -> list[str]:
    """Return a line for each lab, and what the lab and an agent without us told over all of them."""
    lines = [
        "| lab | kind | ideas | that help | told | of them none | helping found | error spent | minutes |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        told, gains = count_kept(row, None), row["gains"][: len(row["races"])]
        entries = [Entry.model_validate_json(line) for line in row["ledger"].splitlines()]
        none = sum(not gains[place] for place in told)
        planted = ", ".join(f"+{gain:.1%}" for gain in gains if gain) or "none"
        lines.append(
            f"| {row['number']} | {row['base']['kind']} | {len(gains)} | {planted} | {len(told)} | {none} | "
            f"{len(told) - none} | {spell_share(describe_lab(read_lab(entries)).spent)} | {row['seconds'] / 60:.1f} |"
        )
    lines += [
        "",
        "| who keeps | ideas kept | of them none | share, mean over labs | ideas that are none, kept | helping found |",
        "|---|---|---|---|---|---|",
    ]
    ways = {"a gain told by the lab": None, "faster in the first launches": 0.0, "by 2 % or more": 0.02}
    for name, least in ways.items():
        kept = [count_kept(row, least) for row in rows]
        false = [sum(not row["gains"][p] for p in of) for row, of in zip(rows, kept, strict=True)]
        share = statistics.fmean(f / max(1, len(of)) for f, of in zip(false, kept, strict=True))
        asked = [gain for row in rows for gain in row["gains"][: len(row["races"])]]
        helping, total = sum(map(bool, asked)), sum(map(len, kept))
        nothing = len(asked) - helping
        bounded = f" (≤ {bound(sum(false), nothing):.1%})" if nothing else ""
        lines.append(
            f"| {name} | {total} | {sum(false)} | {share:.0%} | {sum(false)} of {nothing}{bounded} | "
            f"{total - sum(false)} of {helping} |"
        )
    return lines


def main() -> None:
    """Run labs, check them, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--labs", type=int, default=0)
    parser.add_argument("--ideas", type=int, default=8)
    parser.add_argument("--beside", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--until", type=next_time, default=float("inf"), metavar="HH:MM")
    parser.add_argument("--folder", type=Path, default=BLIND)
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    path, lock = given.folder / "labs.jsonl.xz", threading.Lock()
    there = {row["number"] for row in read_rows(path)}

    def run(number: int) -> None:
        if time.time() > given.until:
            return
        row = run_lab(number, given.ideas, given.minutes, given.until)
        with lock, path.open("ab") as file:
            file.write(lzma.compress((json.dumps(row, separators=(",", ":")) + "\n").encode()))
        told = (
            row.get("failed") or f"{len(row['races'])} ideas, told {read_told(row)}, {row['seconds']:.0f} s"
        )
        print(f"lab {number} {row['base']['kind']}: {told}", flush=True)

    if given.labs:
        given.folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(given.beside) as pool:
            list(pool.map(run, islice((n for n in count() if n not in there), given.labs)))
        squeeze(path)
    rows = read_rows(path)
    told = [row for row in rows if row.get("races")]
    print(f"{len(rows)} labs, {len(rows) - len(told)} of them without an answer.\n")
    if given.check:
        wrong = [sentence for row in told for sentence in check_lab(row)]
        print("\n".join(wrong) or "Every verdict, and every told gain, is what its steps say.")
        raise SystemExit(bool(wrong))
    if told:
        print("\n".join(tabulate(told)))


if __name__ == "__main__":
    main()
