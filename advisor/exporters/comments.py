"""The comment lines at the head of every exported file: what was found, where, how sure, and what to know."""

from collections.abc import Iterable, Mapping

from advisor.protocol.answers.advice import Advice, Provenance, Verdict, name_provenance
from advisor.protocol.answers.carried import Carried, write_line
from advisor.protocol.asked.jobs import Job
from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes, spell_with_unit
from advisor.protocol.training.workload import WorkloadKind

_ASCII = str.maketrans(
    {"−": "-", "…": "...", "×": "x", "–": "-", "—": "-", "±": "+/-", "’": "'", "‘": "'", "“": '"', "”": '"'}
)


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
    whose = (
        "Throughput against the baseline"
        if advice.verdict is Verdict.CHANGE
        else "Best strategy tried, not in this file"
    )
    if advice.gain is None:
        return f"{whose}: not confirmed."
    return f"{whose}: {advice.gain.describe()}, {advice.gain.describe_basis()}."


def describe_verdict(advice: Advice) -> str:
    """Return what a file without changes is; empty for one that changes something."""
    baseline = "This file is the baseline: it sets nothing that the script does not do."
    if advice.verdict is Verdict.KEEP:
        return f"Verdict: nothing needs to change. {baseline}"
    if advice.verdict is Verdict.UNDECIDED:
        return f"Verdict: undecided. {baseline} {advice.what_to_do}"
    return ""


def describe_value(value: Value) -> str:
    """Return a knob's value as people write it: `on`, `off`, `32`, `0.5`."""
    return spell_with_unit(value)


def head_lines(
    advice: Advice,
    job: Job,
    title: str,
    provenance: Mapping[str, Provenance],
    warnings: Iterable[str] = (),
    unmapped: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the lines that stand at the head of an exported file."""
    when = job.finished_at or job.started_at or job.created_at
    software = ", ".join(f"{name} {version}" for name, version in sorted(advice.software.items()))
    lines = [
        title,
        f"Fleet Advisor, job {job.id}{f' ({job.spec.name})' if job.spec.name else ''}, {when:%Y-%m-%d %H:%M} UTC.",
        f"Measured on {advice.cluster or job.cluster.describe()}{f'; {software}' if software else ''}.",
        describe_gain(advice),
    ]
    if verdict := describe_verdict(advice):
        lines.append(verdict)
    for knob, value in advice.changes.items():
        before = describe_value(advice.baseline[knob])
        known = f" ({name_provenance(provenance[knob])})" if knob in provenance else " (not expressed here)"
        title = advice.catalogue.spell_name(knob, advice.software)
        called = f"{title} ({knob})" if title != knob else knob
        lines.append(f"Changed: {called} from {before} to {describe_value(value)}{known}.")
    carried = sum(knob in provenance for knob in advice.changes)
    whole = " run.sh carries all of them." if job.spec.workload.kind is WorkloadKind.PYTORCH else ""
    if not carried and advice.changes:
        lines.append(
            f"Carries 0 of {len(advice.changes)} changes: nothing of what is advised is in this file.{whole}"
        )
    elif carried < len(advice.changes):
        lines.append(
            f"Carries {carried} of {len(advice.changes)} changes: the gain above was measured with all of them "
            f"together, and what these alone bring was not (advisor verify THIS-FILE measures it).{whole}"
        )
    lines += [f"Not expressible here: {name}: {sentence}" for name, sentence in (unmapped or {}).items()]
    lines += [f"Note: {sentence}" for sentence in warnings]
    lines.append(write_line(_describe_carried(advice, job, provenance)))
    return lines


def _describe_carried(advice: Advice, job: Job, provenance: Mapping[str, Provenance]) -> Carried:
    changes = Changes({name: value for name, value in advice.changes.items() if name in provenance})
    return Carried(
        job_id=job.id,
        job_name=job.spec.name,
        kind=job.spec.workload.kind,
        own=job.spec.workload.own,
        changes=changes,
        baseline={name: advice.baseline[name] for name in changes},
        gain=advice.gain if len(changes) == len(advice.changes) else None,
    )
