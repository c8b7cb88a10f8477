"""`python -m tests.releases.frameworks [NAME …]`: our own tests of frameworks under other releases of each of them.

Each release is put into a virtual environment that sees this checkout's packages, with what it needs from its own time,
and is removed after. The newest release is the one of the registry; the other one is the newest that the registry had
on the day of `--before`. What happened is written to docs/results/framework_releases.json and to its page.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs" / "results" / "framework_releases.json"
BEFORE = "2025-11-30"
EXPORTS = "tests/conformance/test_framework_exports.py"
LONGEST_S = 900
HEAD = """# The advisor with releases of frameworks

Made by `python -m tests.releases.frameworks`, on CPUs, beside torch {torch}: our own tests of each framework, with the
newest release that the registry has and with the newest that it had on {before}. Where tests failed, the reasons
stand below.

| framework | release | tried on | with | tests | result |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Framework:
    """What is tried of it."""

    tests: tuple[str, ...]
    """Words for pytest."""
    beside: tuple[str, ...] = ()
    """Packages that are taken from the same day."""


FRAMEWORKS = {
    "transformers": Framework((EXPORTS, "-k", "trainer"), ("accelerate",)),
    "accelerate": Framework((EXPORTS, "-k", "accelerate")),
    "lightning": Framework((EXPORTS, "-k", "lightning")),
    "trl": Framework(("tests/conformance/test_trl.py",), ("transformers", "accelerate")),
    "deepspeed": Framework(("tests/conformance/test_deepspeed_engine.py", EXPORTS, "-k", "deepspeed")),
    "ray": Framework(("tests/distributed/here/test_ray.py", "tests/unit/cli/test_ray.py")),
    "optuna": Framework(
        (
            "tests/unit/tuning/search",
            "tests/unit/tuning/history/test_study.py",
            "tests/unit/cli/test_optuna_storage.py",
        )
    ),
}


def resolve(packages: Sequence[str], before: str | None) -> dict[str, str]:
    """Return the newest release of each that the registry has, or had at the end of that day (YYYY-MM-DD)."""
    words = [sys.executable, "-m", "uv", "pip", "compile", "-", "--no-deps", "--no-header", "--no-annotate"]
    words += ["--exclude-newer", before] if before else []
    done = subprocess.run(words, input="\n".join(packages), capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(
            f"The registry did not tell the releases of {', '.join(packages)}: {done.stderr[-500:]}"
        )
    return dict(re.findall(r"^(\S+)==(\S+)$", done.stdout, re.MULTILINE))


def find_bound(name: str, release: str) -> str:
    """Return what pyproject.toml asks of this package where the release is outside of it; else nothing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [Requirement(each) for group in project["optional-dependencies"].values() for each in group]
    outside = [each for each in asked if each.name == name and not each.specifier.contains(release)]
    return str(outside[0]) if outside else ""


def try_release(name: str, releases: Mapping[str, str]) -> dict[str, Any]:
    """Install these releases and run the framework's tests with them."""
    framework = FRAMEWORKS[name]
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True, symlinks=True)
        packages = Path("lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
        # Of a folder that is added this way, the .pth files are read as well: the one of this checkout is there.
        beside = f"import site; site.addsitedir({str(Path(sys.prefix) / packages)!r})\n"
        (Path(place) / packages / "beside.pth").write_text(beside)
        python = str(Path(place, "bin", "python"))
        wanted = [f"{package}=={release}" for package, release in releases.items()]
        installed = _run([python, "-m", "pip", "install", "--quiet", "--no-compile", *wanted])
        if installed.returncode:
            return {"passed": 0, "skipped": 0, "failed": {"pip": installed.stderr.strip()[-500:]}}
        report = Path(place, "suite.xml")
        words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *framework.tests]
        done = _run([python, *words], PATH=os.pathsep.join((f"{place}/bin", os.environ["PATH"])))
        if not report.exists():
            return {"passed": 0, "skipped": 0, "failed": {"pytest": (done.stdout + done.stderr)[-1000:]}}
        return count(ElementTree.parse(report).getroot())


def count(suite: ElementTree.Element) -> dict[str, Any]:
    """What pytest's report says: how many passed and were skipped, and why each that failed did."""
    cases = list(suite.iter("testcase"))
    failures = {
        case: case.find("failure") if case.find("failure") is not None else case.find("error")
        for case in cases
    }
    failed = {
        case.get("name", ""): re.sub(r" at 0x\w+|\s+", " ", told.get("message") or "").strip()[:300]
        for case, told in failures.items()
        if told is not None
    }
    skipped = sum(case.find("skipped") is not None for case in cases)
    return {"passed": len(cases) - len(failed) - skipped, "skipped": skipped, "failed": failed}


def describe(found: Sequence[Mapping[str, Any]], before: str, torch: str) -> str:
    """The page."""
    columns = ("framework", "release", "date", "beside", "tests")
    rows = [f"| {' | '.join([*(each[name] for name in columns), _say(each)])} |" for each in found]
    failures = [
        f"* {each['framework']} {each['release']}, {times} of its tests: {why}"
        for each in found
        for why, times in Counter(each["failed"].values()).most_common()
    ]
    head = HEAD.format(before=before, torch=torch)
    return head + "\n".join([*rows, "", "## Failures", "", *(failures or ["None."])]) + "\n"


def _say(each: Mapping[str, Any]) -> str:
    told = [f"{each['passed']} passed"]
    told += [f"{each['skipped']} skipped"] if each["skipped"] else []
    told += [f"**{len(each['failed'])} failed**"] if each["failed"] else []
    return ", ".join(told) + (f" (`{each['asked']}` of pyproject.toml excludes it)" if each["asked"] else "")


def _run(words: Sequence[str], **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONGEST_S,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", **variables},
    )  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Try them; 1 where a test fails with a release that pyproject.toml allows."""
    parser = argparse.ArgumentParser(prog="python -m tests.releases.frameworks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", default=list(FRAMEWORKS), metavar="NAME", help="transformers, say"
    )
    parser.add_argument("--before", default=BEFORE, metavar="DAY", help=f"the older releases' day ({BEFORE})")
    given = parser.parse_args(words)
    if unknown := sorted({*given.names} - {*FRAMEWORKS}):
        parser.error(f"there is no framework {unknown[0]!r}; there are {', '.join(FRAMEWORKS)}")
    failed = False
    for name in given.names:
        framework = FRAMEWORKS[name]
        for before in (None, given.before):
            releases = resolve((name, *framework.beside), before)
            told = try_release(name, releases)
            bound = find_bound(name, releases[name])
            failed = failed or bool(told["failed"] and not bound)
            print(name, releases, told, flush=True)
            _write({
                "framework": name, "release": releases[name], "date": datetime.now(UTC).date().isoformat(),
                "beside": ", ".join(f"{each} {releases[each]}" for each in framework.beside),
                "tests": f"`{' '.join(framework.tests)}`", "asked": bound, **told,
            }, given.before)  # fmt: skip
    return int(failed)


def _write(entry: dict[str, Any], before: str) -> None:
    found: list[dict[str, Any]] = json.loads(FIGURES.read_text()) if FIGURES.exists() else []
    of = entry["framework"], entry["release"]
    found = [each for each in found if (each["framework"], each["release"]) != of] + [entry]
    found.sort(key=lambda each: ([*FRAMEWORKS].index(each["framework"]), each["release"]))
    FIGURES.write_text(json.dumps(found, indent=1) + "\n")
    FIGURES.with_suffix(".md").write_text(describe(found, before, version("torch")))


if __name__ == "__main__":
    sys.exit(main())
