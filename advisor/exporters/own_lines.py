"""The one to three lines that put an advice into a PyTorch script by hand, in the words of what the script uses.

A pure function of advice and job. `run.sh` needs none of them: they are for people who own the script.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from advisor.exporters.frameworks import LIBRARIES, write_arguments
from advisor.exporters.settings import Situation
from advisor.exporters.words import VARIABLES, choose_settings, idle_because, typed_values, write_in_script
from advisor.protocol.answers.advice import Advice
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.training.own_knobs import UNSET, OwnKnob, spell
from advisor.protocol.training.workload import WorkloadKind

_FOR_PADDLE = frozenset({"FLAGS_fraction_of_gpu_memory_to_use"})
"""Variables that do nothing in PyTorch."""


@dataclass(frozen=True)
class OwnLine:
    """One line to write, and where."""

    text: str
    where: str = ""
    """Where it goes, or when it runs; empty where the line says it."""
    knobs: tuple[str, ...] = ()
    """The changes that it makes."""


def list_own_lines(advice: Advice, job: Job) -> tuple[OwnLine, ...]:
    """Return a line for each change that has one; other changes come in by run.sh and the exported files."""
    if job.spec.workload.kind is not WorkloadKind.PYTORCH:
        return ()
    values = typed_values(advice)
    left = [
        name for name in advice.changes if name in advice.catalogue and idle_because(name, values) is None
    ]
    lines = []
    for told in (
        *(_say_own(knob, values) for knob in job.spec.workload.own if knob.name in left),
        *_variables(left, values, job),
        *_arguments(advice, job),
        *_script(left, values, job),
    ):
        knobs = tuple(name for name in told.knobs if name in left)
        if knobs:
            left = [name for name in left if name not in knobs]
            lines.append(replace(told, knobs=knobs))
    return tuple(lines)


def _say_own(knob: OwnKnob, values: Mapping[str, Value]) -> OwnLine:
    """What to write where a knob of the user's own stands."""
    value = spell(values[knob.name])
    words = shlex.join(knob.words.get(value, ())) or value
    if knob.is_command:
        return OwnLine(words, "the command", (knob.name,))
    if knob.words:
        return OwnLine(words, "at the end of the command", (knob.name,))
    if knob.file:
        path, key = knob.file
        return OwnLine(f"{key} = {value}", f"in {path}", (knob.name,))
    if knob.variable:
        text = f"unset {knob.variable}" if value == UNSET else f"{knob.variable}={value}"
        return OwnLine(text, "before the launch command", (knob.name,))
    if knob.at.startswith("-"):
        return OwnLine(f"{knob.at} {value}", "in the command", (knob.name,))
    return OwnLine(f"{knob.at or knob.name} = {value}", knob.describe_place(), (knob.name,))


def _variables(names: Iterable[str], values: Mapping[str, Value], job: Job) -> Iterator[OwnLine]:
    found = [name for name in names if name in VARIABLES and name not in _FOR_PADDLE]
    if "num_threads" in found and job.facts is not None and job.facts.sets_threads:
        found.remove("num_threads")
        text = f"torch.set_num_threads({values['num_threads']})"
        yield OwnLine(text, "in place of the script's own", ("num_threads",))
    words = [f"{VARIABLES[name]}={int(v) if isinstance(v := values[name], bool) else v}" for name in found]
    typed = [
        word for word in job.spec.workload.command for name in found if word.startswith(f"{VARIABLES[name]}=")
    ]
    where = f"in the command, in place of {' '.join(typed)}" if typed else "before the launch command"
    yield OwnLine(" ".join(words), where, tuple(found))


def _arguments(advice: Advice, job: Job) -> Iterator[OwnLine]:
    """The arguments of the library that the script trains with, where it is not DDP's own."""
    software = job.facts.software if job.facts is not None else {}
    for name, library in LIBRARIES.items():
        if any(known.endswith(name) for known in software):
            chosen = choose_settings(advice, job, library.name, library.call)
            if told := write_arguments(chosen.entries, library, job):
                words = ", ".join(f"{argument}={value}" for argument, value in told.items())
                yield OwnLine(f"{library.call}(…, {words})", knobs=tuple(chosen.provenance))
            return


def _script(names: Iterable[str], values: Mapping[str, Value], job: Job) -> Iterator[OwnLine]:
    """What is written into the script itself; knobs that say the same are one line."""
    situation, told = Situation.of(values, job), dict[tuple[str, str], list[str]]()
    for name in names:
        if line := write_in_script(name, situation):
            told.setdefault(line, []).append(name)
    return (OwnLine(*line, tuple(knobs)) for line, knobs in told.items())
