"""What an export format is, what its writer returns, and the lines that stand at the head of every file."""

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from advisor.protocol.answers.advice import Advice, Provenance, Verdict, name_provenance
from advisor.protocol.answers.carried import Carried, write_line
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Message
from advisor.protocol.knobs.changes import Changes, spell_with_unit
from advisor.protocol.training.workload import WorkloadFacts, WorkloadKind

PYTHON = "text/x-python; charset=utf-8"
SHELL = "text/x-shellscript; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
JSON = "application/json"
PYTORCH, COMMAND = (WorkloadKind.PYTORCH,), (WorkloadKind.COMMAND,)
IN_PADDLE = (WorkloadKind.PYTORCH, WorkloadKind.PADDLE, WorkloadKind.COMMAND)
_ASCII = str.maketrans(
    {"−": "-", "…": "...", "×": "x", "–": "-", "—": "-", "±": "+/-", "’": "'", "‘": "'", "“": '"', "”": '"'}
)


class ExportError(ValueError):
    """The strategy cannot be exported as asked. The sentence names the value and what is allowed."""


class Exported(Message):
    """One exported file, with what it claims and what it cannot say."""

    format: str
    """Name of the format."""
    target: str = ""
    """Version of the tool it is written for; empty where the format has no versions."""
    filename: str
    """Name to save it under; other files of the export refer to it by this name."""
    media_type: str
    content: str
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """How `content` holds the file's bytes: as text, or, of an archive, in base64."""
    provenance: dict[str, Provenance] = Field(default_factory=dict)
    """For every knob that the file sets: how much is known about its value in that tool."""
    left: dict[str, str] = Field(default_factory=dict)
    """Knobs left to the tool's own default or to the script, each with the reason."""
    unmapped: dict[str, str] = Field(default_factory=dict)
    """Knobs of the advised strategy that the format cannot express, each with a sentence."""
    warnings: tuple[str, ...] = ()
    """What to know before using the file."""
    needs: tuple[str, ...] = ()
    """Formats whose files must lie beside this one."""

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        return self.content.encode() if self.encoding == "utf-8" else base64.b64decode(self.content)


class FormatInfo(Message):
    """A format that can be exported."""

    name: str
    """What to ask for."""
    filename: str
    media_type: str
    meaning: str
    """What the file is and who loads it, in one sentence."""
    targets: tuple[str, ...] = ()
    """Versions of the tool it can be written for, the default first; empty where it has none."""
    knobs: tuple[str, ...] = ()
    """Knobs that it can express."""
    kinds: tuple[WorkloadKind, ...] = tuple(WorkloadKind)
    """Kinds of workload whose strategy it can apply."""
    software: str = ""
    """Library that has to be at work in the training for the file to mean anything; empty where none has."""


@dataclass
class Written:
    """What a format's writer makes of a strategy: the file, and what it says and does not say."""

    provenance: dict[str, Provenance] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    unmapped: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    content: str = ""
    target: str = ""

    def head(self, advice: Advice, job: Job, title: str) -> list[str]:
        """Return the lines at the head of the file: what was found, where, how sure, and what to know."""
        when = job.finished_at or job.started_at or job.created_at
        software = ", ".join(f"{name} {version}" for name, version in sorted(advice.software.items()))
        lines = [
            title,
            f"Fleet Advisor, job {job.id}{f' ({job.spec.name})' if job.spec.name else ''}, {when:%Y-%m-%d %H:%M} UTC.",
            f"Measured on {advice.cluster or job.cluster.describe()}{f'; {software}' if software else ''}.",
            describe_gain(advice),
            *filter(None, [say_held(advice)]),
        ]
        for knob, value in advice.changes.items():
            before = spell_with_unit(advice.baseline[knob])
            is_carried = knob in self.provenance
            known = name_provenance(self.provenance[knob]) if is_carried else "not expressed here"
            title = advice.catalogue.spell_name(knob, advice.software)
            called = f"{title} ({knob})" if title != knob else knob
            lines.append(f"Changed: {called} from {before} to {spell_with_unit(value)} ({known}).")
        carried = Changes({name: value for name, value in advice.changes.items() if name in self.provenance})
        whole = " run.sh carries all of them." if job.spec.workload.kind is WorkloadKind.PYTORCH else ""
        share = f"Carries {len(carried)} of {len(advice.changes)} changes"
        if not carried and advice.changes:
            lines.append(f"{share}: nothing of what is advised is in this file.{whole}")
        elif len(carried) < len(advice.changes):
            lines.append(
                f"{share}: the gain above was measured with all of them together, and what these alone bring was not "
                f"(advisor verify THIS-FILE measures it).{whole}"
            )
        lines += [f"Not expressible here: {name}: {sentence}" for name, sentence in self.unmapped.items()]
        lines += [f"Note: {sentence}" for sentence in self.warnings]
        told = Carried(
            job_id=job.id,
            job_name=job.spec.name,
            kind=job.spec.workload.kind,
            own=job.spec.workload.own,
            changes=carried,
            baseline={name: advice.baseline[name] for name in carried},
            gain=advice.gain if len(carried) == len(advice.changes) else None,
        )
        return [*lines, write_line(told)]


def is_named(software: str, facts: WorkloadFacts) -> bool:
    """Whether the training uses a library: pytorch_lightning is lightning, too."""
    return any(name.endswith(software) for name in facts.software)


class Format(FormatInfo):
    """A format with everything that is known of it: its writer, and for which jobs it is offered and bundled."""

    write: Callable[..., Written]
    """Of advice and job, and of the target version or None where the format has versions."""
    needs: tuple[str, ...] = ()
    """Formats whose files must lie beside it."""
    encoding: Literal["utf-8", "base64"] = "utf-8"
    """How `Written.content` holds the bytes."""
    bundled: tuple[WorkloadKind, ...] = ()
    """Kinds of workload whose bundle holds it, where its library is at work."""
    is_offered: bool = True
    """False: it is written only when it is asked for by name."""
    suits: Callable[[Job], bool] = lambda _: True
    """Whether it can apply the strategy of a job of its kinds."""
    is_used: Callable[[str, WorkloadFacts], bool] = is_named
    """Whether its `software` is at work in a training."""

    def export(self, advice: Advice, job: Job, target: str | None = None) -> Exported:
        """Return the file; raises ExportError where the strategy cannot be written so."""
        made = self.write(advice, job, target) if self.targets else self.write(advice, job)
        return Exported(
            format=self.name, target=made.target, filename=self.filename, media_type=self.media_type,
            content=made.content, encoding=self.encoding, provenance=made.provenance, left=made.left,
            unmapped=made.unmapped, warnings=tuple(made.warnings), needs=self.needs,
        )  # fmt: skip


def one_line(text: str) -> str:
    """Return `text` as one line of printable ASCII, so that no name can end a comment and begin a command.

    Paddle and shells read files in the locale's encoding, hence ASCII.
    """
    words = "".join(mark if mark.isprintable() else " " for mark in text.translate(_ASCII)).split()
    return " ".join(words).encode("ascii", "backslashreplace").decode("ascii")


def comment(lines: Iterable[str]) -> str:
    """Return `lines` as `#` comments, each ending in a newline."""
    return "".join(f"# {one_line(line)}".rstrip() + "\n" for line in lines)


def describe_gain(advice: Advice) -> str:
    """Return the confirmed gain with its interval and what it rests on, or that none was confirmed.

    A file that changes nothing says whose gain that was: not its own.
    """
    whose = "Throughput against the baseline" if advice.changes else "Best strategy tried, not in this file"
    if advice.gain is None:
        return f"{whose}: not confirmed."
    return f"{whose}: {advice.gain.describe()}, {advice.gain.describe_basis()}."


def say_held(advice: Advice, file: str = "This file") -> str:
    """Return what a file holds where nothing is advised, and why; empty where something is."""
    baseline = f"{file} is the baseline: it sets nothing that the script does not do."
    return {
        Verdict.CHANGE: "",
        Verdict.KEEP: f"Verdict: nothing needs to change. {baseline}",
        Verdict.UNDECIDED: f"Verdict: undecided. {baseline} {advice.what_to_do}",
    }[advice.verdict]


def describe_difference(advice: Advice, file: Exported) -> str:
    """Return the lines of a diff by knob: `-` as the script has it, `+` as the file has it, `!` what it cannot say."""
    lines = ["--- your script as it was measured", f"+++ {file.filename}"]
    for knob, value in advice.changes.items():
        told = f"{knob} = {spell_with_unit(value)}"
        if knob in file.provenance:
            lines += [f"-{knob} = {spell_with_unit(advice.baseline[knob])}", f"+{told}"]
        else:
            lines.append(f"!{told}: {file.unmapped.get(knob, 'not in this file.')}")
    return "\n".join(lines if advice.changes else [*lines, f" {say_held(advice)}"])
