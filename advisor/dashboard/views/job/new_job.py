"""The form of a new job: what was typed, what is wrong with it in the words of the form, and what the job would do."""

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

import yaml
from pydantic import ValidationError

from advisor.dashboard import formats
from advisor.dashboard.views.evidence import show_knob
from advisor.errors import InvalidJob
from advisor.protocol.answers.previews import PlannedKnob, PlanPreview
from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.training.workload import WorkloadKind

_FIELDS = {
    "workload.command": ("command", "the command"),
    "workload.working_dir": ("working_dir", "the folder"),
    "workload.own": ("own", "the knobs of your own"),
    "workload.require": ("require", "what must hold"),
    "workload": ("own", "the knobs of your own"),
    "budget.max_seconds": ("minutes", "the time"),
    "budget.max_trials": ("trials", "the number of strategies"),
}
"""Names of the job's fields, the field of the form that holds each, and its word."""
_MOST_MINUTES = 43_200
_MOST_SHOWN = 8


@dataclass(frozen=True)
class Draft:
    """What stands in the form, as it was typed."""

    name: str = ""
    command: str = ""
    kind: str = WorkloadKind.PYTORCH.value
    working_dir: str = ""
    nodes: str = "1"
    minutes: str = "30"
    trials: str = "24"
    allow: str = Effect.EXACT.value
    knobs: tuple[str, ...] = ()
    """Knobs to search; none means every knob that can matter."""
    own: str = ""
    """Knobs of the script's own, one a line."""
    require: str = ""
    """What must hold between them, one a line."""
    sampler: str = ""
    """The sampler of Optuna that proposes; empty is the advisor's own."""


@dataclass(frozen=True)
class Reading:
    """A draft, read: either a specification, or what is wrong with it."""

    spec: JobSpec | None
    problems: Mapping[str, str] = field(default_factory=dict)
    """By field of the form; "" holds what belongs to no field."""


def list_offered() -> list[tuple[Effect, list[tuple[str, str]]]]:
    """Return the knobs that can be searched, with their meaning, by rung."""
    return [
        (effect, [(k.name, k.meaning) for k in CATALOGUE.values() if k.effect is effect and not k.carried])
        for effect in Effect
    ]


def _read_number(text: str, what: str, least: float, most: float, whole: bool) -> tuple[float, str]:
    """The number, and what is wrong with it."""
    try:
        value = float(text.strip())
    except ValueError:
        value = float("nan")
    if least <= value <= most and (not whole or value == int(value)):
        return value, ""
    kind = "whole number" if whole else "number"
    return least, f"Give {what}: a {kind} from {formats.amount(least)} to {formats.amount(most)}."


def read_draft(draft: Draft) -> Reading:
    """Return the job that the form describes, or every problem that it has."""
    problems: dict[str, str] = {}
    words: list[str] = []
    try:
        words = shlex.split(draft.command)
    except ValueError:
        problems["command"] = "A quotation mark is open: close it, or put a backslash before it."
    if not words and "command" not in problems:
        problems["command"] = "Give the command as you type it: torchrun --nproc-per-node 8 train.py"
    if not draft.working_dir.startswith("/"):
        problems["working_dir"] = "Give the folder's full path on the nodes, such as /srv/train."
    numbers: dict[str, float] = {}
    for name, what, least, most, whole in (
        ("nodes", "the nodes that train together", 1, 1024, True),
        ("minutes", "the minutes that it may take", 1, _MOST_MINUTES, False),
        ("trials", "the strategies that it may try", 1, 500, True),
    ):
        numbers[name], problem = _read_number(getattr(draft, name), what, least, most, whole)
        if problem:
            problems[name] = problem
    if problems:
        return Reading(None, problems)
    document = {
        "name": draft.name.strip(),
        "workload": {
            "kind": draft.kind,
            "command": words,
            "working_dir": draft.working_dir,
            "own": _list_lines(draft.own),
            "require": _list_lines(draft.require),
        },
        "nodes": int(numbers["nodes"]),
        "allow": draft.allow,
        "knobs": draft.knobs,
        "sampler": draft.sampler,
        "budget": {"max_seconds": 60.0 * numbers["minutes"], "max_trials": int(numbers["trials"])},
    }
    try:
        return Reading(JobSpec.model_validate(document))
    except ValidationError as error:
        for found in error.errors(include_url=False):
            path = ".".join(str(part) for part in found["loc"] if isinstance(part, str))
            place = _FIELDS.get(path, (path if hasattr(draft, path) else "", ""))[0]
            problems.setdefault(place, found["msg"].removeprefix("Value error, "))
        return Reading(None, problems)


def _list_lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def place_refusal(refusal: InvalidJob) -> dict[str, str]:
    """Return what the server refuses beside the fields that it is about, in the words of the form."""
    placed: dict[str, str] = {}
    for name, wrong in refusal.faults:
        place, word = _FIELDS.get(name, ("", name))
        told = wrong.removeprefix(": ") if wrong.startswith(":") and place else f"{word}{wrong}"
        placed[place] = f"{placed[place]} {told}" if place in placed else told
    return placed or {"": refusal.sentence}


def say_values(knob: PlannedKnob) -> str:
    """Return the values of a knob that would be tried."""
    if knob.values:
        told = ", ".join(show_knob(knob.knob, value) for value in knob.values[:_MOST_SHOWN])
        left = len(knob.values) - _MOST_SHOWN
        return f"{told} and {left} more" if left > 0 else told
    if knob.low is not None and knob.high is not None:
        return f"{formats.amount(knob.low)} … {formats.amount(knob.high)} {knob.unit}".strip()
    return "known after the first launch"


def list_limits(plan: PlanPreview) -> list[tuple[str, str]]:
    """Return what the job may spend and can find, as label and value."""
    figures = [
        ("strategies", f"about {plan.likely_trials}, at most {plan.most_trials}"),
        ("time", f"at most {formats.duration(plan.most_seconds)}"),
    ]
    if plan.most_device_hours is not None:
        figures.append(("device-hours", f"at most {formats.device_hours(plan.most_device_hours)}"))
    if plan.smallest_gain is not None:
        figures.append(("smallest gain it can find", formats.percent(plan.smallest_gain, 1)))
    return figures


def write_yaml(spec: JobSpec) -> str:
    """Return the job as a file that `advisor submit` reads."""
    document = spec.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)


def write_curl(spec: JobSpec, server_url: str) -> str:
    """Return the request that submits the job, for a shell."""
    body = json.dumps(spec.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False)
    return (
        f"curl --fail-with-body {shlex.quote(f'{server_url}/api/v1/jobs')} \\\n"
        '  -H "Authorization: Bearer $ADVISOR_TOKEN" -H "Content-Type: application/json" \\\n'
        f"  --data {shlex.quote(body)}"
    )
