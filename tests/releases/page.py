"""docs/results/torch_releases.md from its figures. Pure functions."""

from collections.abc import Mapping
from typing import Any

Figures = Mapping[str, Any]

HEAD = """# The runtime in torch's releases

Made by `make matrix` (`make matrix TORCH="2.14.1"` for one release), on CPUs: two gloo ranks, four where that shows
more. Each knob is put in force by `advisor run` in a training of 40 steps, beside the same training without it. The
minutes are those of the machine as it was. *Not tried*: nothing came of it yet, or the script fails there by itself.

* **in force**: the runtime proved it, *and* the script saw it by itself, in torch's profiler, in DDP's log, in its
  gradients or its process; *by its proof* where a script cannot see it. **=** every loss and every parameter of every
  step has the bits of the training without it.
* **refused**: the runtime said why not; the sentences stand below. **absent**: this torch has nothing that does it.
* **SILENT**, **BROKEN** and **OTHER BITS** are faults: proved and not seen; a training that failed, or a refusal
  where the script has all that it takes; an exact knob that computes something else.
"""


NOT_RUN: Figures = {"failed": {}}


def read_release(release: str) -> tuple[int, ...]:
    """Its numbers."""
    return tuple(int(part) for part in release.split("+")[0].split(".") if part.isdigit())


def find_faults(found: Figures) -> list[str]:
    """What must not be in a release's figures."""
    faults = [
        f"{name}: {_cell(answer)}: {answer['sentence']}"
        for name, answer in found.get("knobs", {}).items()
        if _cell(answer).isupper()
    ]
    faults += [f"private name {name}" for name in found.get("names", {}).get("wrong", ())]
    faults += [f"{name}: {why}" for name, why in found.get("suite", NOT_RUN)["failed"].items()]
    faults += [
        f"{name} {run['version']}: exit {run['code']}, missing {run['missing']} {run['error'][-300:]}"
        for name, run in found.get("frameworks", {}).items()
        if run["code"] or run["missing"] or not run["in_force"]
    ]
    return faults


def _cell(answer: Figures) -> str:
    if answer["state"] in ("silent", "broken"):
        return str(answer["state"]).upper()
    if answer.get("same_bits") is False:
        return "OTHER BITS"
    if answer["state"] != "in force":
        return str(answer["state"])
    return (
        "in force" + (" =" if answer.get("same_bits") else "") + ("" if answer["shown"] else ", by its proof")
    )


def describe(releases: Mapping[str, Figures]) -> str:
    """The page."""
    lines = [
        HEAD,
        *_table("", {r: f"{f['date']}, {sum(f['minutes'].values()):.0f} min" for r, f in releases.items()}),
    ]
    rows: dict[str, dict[str, str]] = {"Python": {r: f.get("python", "") for r, f in releases.items()}}
    rows["build"] = {r: f.get("torch", "") for r, f in releases.items()}
    rows["private names"] = {
        r: "all as declared" if not f.get("names", {}).get("wrong") else f"{len(f['names']['wrong'])} WRONG"
        for r, f in releases.items()
    }
    rows["the runtime's suite"] = {r: _count(f.get("suite")) for r, f in releases.items()}
    for name in dict.fromkeys(name for f in releases.values() for name in f.get("frameworks", {})):
        rows[f"`advisor run`, {name}"] = {
            r: _run(f.get("frameworks", {}).get(name)) for r, f in releases.items()
        }
    lines += [_row(name, cells, releases) for name, cells in rows.items()]
    knobs = dict.fromkeys(name for f in releases.values() for name in f.get("knobs", {}))
    lines += ["", "## Knobs", "", *_table("knob", dict.fromkeys(releases, ""))[:2]]
    alike: dict[tuple[str, ...], list[str]] = {}
    for name in knobs:
        cells = tuple(
            _cell(f["knobs"][name]) if name in f.get("knobs", {}) else "not tried" for f in releases.values()
        )
        alike.setdefault(cells, []).append(_code(name))
    lines += [
        _row(", ".join(names), dict(zip(releases, cells, strict=True)), releases)
        for cells, names in alike.items()
    ]
    lines += ["", "## Sentences", ""]
    for name in knobs:
        told: dict[str, list[str]] = {}
        for r, f in releases.items():
            answer = f.get("knobs", {}).get(name)
            if answer and answer["state"] != "in force":
                told.setdefault(answer["sentence"].replace(f["torch"], "…"), []).append(r)
        lines += [f"* {_code(name)}, {', '.join(where)}: {_flat(text)}" for text, where in told.items()]
    faults = [f"* {r}: {_flat(fault)}" for r, f in releases.items() for fault in find_faults(f)]
    lines += ["", "## Faults", "", *(faults or ["None."])]
    return "\n".join(lines) + "\n"


def _table(corner: str, heads: Mapping[str, str]) -> list[str]:
    titles = [f"torch {release}" + (f"<br>{told}" if told else "") for release, told in heads.items()]
    return [f"| {' | '.join([corner, *titles])} |", f"|---|{'---|' * len(heads)}"]


def _row(name: str, cells: Mapping[str, str], releases: Mapping[str, Figures]) -> str:
    return f"| {' | '.join([name, *(cells[release] for release in releases)])} |"


def _code(name: str) -> str:
    knob, *words = name.split()
    return " ".join([f"`{knob}`", *(f"({word.removeprefix('--')})" for word in words)])


def _count(suite: Figures | None) -> str:
    if suite is None:
        return "not run"
    told = [f"{suite['passed']} passed"]
    told += [f"{len(suite[what])} {what}" for what in ("failed", "skipped") if suite[what]]
    return ", ".join(told)


def _run(run: Figures | None) -> str:
    if run is None:
        return "not tried"
    asked = len(run["in_force"]) + len(run["missing"])
    return f"{run['version']}: " + (
        f"{len(run['in_force'])} of {asked} in force" if not run["code"] else "FAILED"
    )


def _flat(text: str) -> str:
    return " ".join(text.split())
