"""`make matrix`: installs each release of torch in turn, tries everything in it, writes the page, and removes it."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.releases.environment import FRAMEWORKS, ROOT, Environment, NotInstallable, provide, remove
from tests.releases.newest import ask_registry, find_lag
from tests.releases.page import describe, find_faults, read_release
from tests.releases.trials import TRIALS

RELEASES = ("2.6.0", "2.9.1", "2.12.1", "2.13.0", "2.14.1")
FIGURES = ROOT / "docs" / "results" / "torch_releases.json"
RUNTIME_TESTS = "tests/distributed/runtime"
SUITE = (
    "bit_check",
    "knobs",
    "training_knobs",
    "sharded_knobs",
    "production",
    "compiled_scripts",
    "recomputation",
)
"""The files of the runtime's suite that ask what is in force and whether the bits are the same."""
ADVISED = {"fuse_grad_size_in_MB": 0.0625, "nccl_comm_num": 2}
SCRIPTS = {
    "transformers": "hf_trainer.py",
    "accelerate": "accelerate_script.py",
    "lightning": "lightning_script.py",
}
LONGEST_S = 900


def check_release(
    release: str, parts: Sequence[str], *, keep: bool, knobs: Sequence[str] = ()
) -> dict[str, Any]:
    """These parts in one release; the figures and the page are written after each. Raises NotInstallable.

    Where knobs are named, those alone are tried again, and the others' figures stay as they are.
    """
    environment = provide(release)
    found = _read_figures().get(release, {})
    minutes = found.setdefault("minutes", {})
    today = datetime.now(UTC).date().isoformat()
    try:
        with tempfile.TemporaryDirectory() as place:
            if knobs:
                told = _try_knobs(environment, Path(place), knobs)
                together = {**found.get("knobs", {}), **told["knobs"]}
                found = {"date": today, **found, **told, "knobs": together}
                _write_figures(release, found)
                return found
            found["date"] = today
            for name in parts:
                start = time.monotonic()
                found.update(PARTS[name](environment, Path(place)))
                minutes[name] = round((time.monotonic() - start) / 60, 1)
                _write_figures(release, found)
    finally:
        if not keep:
            remove(release)
    return found


def _read_figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    return found


def _write_figures(release: str, found: dict[str, Any]) -> None:
    releases = sorted({**_read_figures(), release: found}.items(), key=lambda each: read_release(each[0]))
    FIGURES.write_text(json.dumps(dict(releases), indent=1) + "\n")
    FIGURES.with_suffix(".md").write_text(describe(dict(releases)))


def _run(
    environment: Environment, words: Sequence[str], **variables: str
) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(environment.python.parent), os.environ["PATH"]])
    return subprocess.run(
        [str(environment.python), *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONGEST_S,
        env={**os.environ, "PATH": path, "CUDA_VISIBLE_DEVICES": "", **variables},
    )  # fmt: skip


def _try_knobs(environment: Environment, place: Path, knobs: Sequence[str] = ()) -> dict[str, Any]:
    output = place / "knobs.json"
    done = _run(environment, ["-m", "tests.releases.trials", str(output), *knobs])
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(output.read_text())
    return found


def _train_with_frameworks(environment: Environment, place: Path) -> dict[str, Any]:
    """`advisor run` of each framework's script under a real torchrun: what its report says."""
    found = {}
    scripts = ROOT / RUNTIME_TESTS / "scripts"
    settings = [word for knob, value in ADVISED.items() for word in ("--set", f"{knob}={value}")]
    for name in FRAMEWORKS:
        report = place / f"{name}.json"
        start = ["torchrun", "--standalone", "--nproc-per-node", "2", str(scripts / SCRIPTS[name])]
        words = ["-m", "agent.production", *settings, "--report", str(report), "--", *start]
        done = _run(environment, words, OUT=str(place), OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
        told = json.loads(report.read_text()) if report.exists() else {"in_force": {}, "missing": {}}
        found[name] = {
            "version": environment.packages[name],
            "code": done.returncode,
            "in_force": sorted(told["in_force"]),
            "missing": told["missing"],
            "error": done.stderr[-1500:] if done.returncode else "",
        }
        print(
            f"{name} {environment.packages[name]}: {found[name]['in_force']} {found[name]['missing']}",
            flush=True,
        )
    return {"frameworks": found}


def _run_suite(environment: Environment, place: Path) -> dict[str, Any]:
    output = place / "suite.xml"
    files = [f"{RUNTIME_TESTS}/test_{name}.py" for name in SUITE]
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not alone",
        f"--junitxml={output}",
        *files,
    ]
    done = _run(environment, words)
    if not output.exists():
        raise RuntimeError((done.stdout + done.stderr)[-3000:])
    [suite] = ElementTree.parse(output).getroot()
    failed = {
        case.get("name", ""): _say(case)
        for case in suite
        if case.find("failure") is not None or case.find("error") is not None
    }
    skipped = {case.get("name", ""): _say(case) for case in suite if case.find("skipped") is not None}
    print(done.stdout[-1500:], flush=True)
    passed = len(suite) - len(failed) - len(skipped)
    return {"suite": {"passed": passed, "failed": failed, "skipped": skipped}}


def _say(case: ElementTree.Element) -> str:
    told = next(iter(case))
    return re.sub(r"\s+", " ", told.get("message") or "")[:300]


PARTS = {"knobs": _try_knobs, "frameworks": _train_with_frameworks, "suite": _run_suite}


def _say_newest() -> int:
    newest = ask_registry()
    if newest is None:
        print("No registry answered: whether the page of torch's releases lags behind was not checked.")
        return 0
    lag = find_lag(_read_figures(), newest)
    print(lag or f"The page of torch's releases is up to the registry's torch {newest}.")
    return int(bool(lag))


def main(words: Sequence[str] | None = None) -> int:
    """Read the command line; 1 where a release has a fault, or could not be had."""
    parser = argparse.ArgumentParser(prog="python -m tests.releases", description=__doc__)
    parser.add_argument("releases", nargs="*", default=list(RELEASES), metavar="RELEASE", help="2.14.1, say")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,…", help="these parts of it")
    parser.add_argument("--knob", action="append", default=[], help="only this knob again (may be repeated)")
    parser.add_argument(
        "--newest", action="store_true", help="only say whether the page lags behind the registry"
    )
    parser.add_argument("--keep", action="store_true", help="do not remove what was installed")
    given = parser.parse_args(words)
    if unknown := sorted({*given.only.split(",")} - {*PARTS}):
        parser.error(f"--only: there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    if unknown := sorted({*given.knob} - {trial.knob for trial in TRIALS}):
        parser.error(f"--knob: tests/releases/trials.py tries no knob {unknown[0]!r}")
    if given.newest:
        return _say_newest()
    code = 0
    for release in given.releases:
        print(f"torch {release}", flush=True)
        try:
            found = check_release(release, given.only.split(","), keep=given.keep, knobs=given.knob)
        except NotInstallable as reason:
            print(reason, file=sys.stderr)
            code = 1
            continue
        faults = find_faults(found)
        print(*(f"FAULT {fault}" for fault in faults), sep="\n", flush=True)
        code = code or int(bool(faults))
    return code
