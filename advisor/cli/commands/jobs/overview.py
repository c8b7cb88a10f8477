"""`advisor jobs`, `show`, `watch` and `cancel`: the jobs of a server."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from advisor.answers.wording import spell_changes, spell_duration, spell_rate
from advisor.cli import connection
from advisor.cli.connection import connect, look_at, look_up, resolve_job
from advisor.cli.exits import exit_of_state
from advisor.cli.moments import read_moment
from advisor.cli.options import JobArgument, JsonOption, VerboseOption, screen_of
from advisor.cli.tuning.follow import watch_detachably
from advisor.cli.views.progress import STAGE_WORDS, describe_progress
from advisor.client import ApiProblem
from advisor.protocol.answers.advice import Interval, Verdict
from advisor.protocol.asked.jobs import Job, JobState
from advisor.protocol.gains import Quality, spell_likely, spell_share
from advisor.protocol.measured.estimates import rate_of
from advisor.protocol.measured.telemetry import DeviceTelemetry, NodeTelemetry, Spread
from advisor.protocol.measured.trials import JobHistory, Trial
from advisor.protocol.nodes.cluster import spell_memory
from advisor.protocol.views import JobQuery


def devices_table(history: JobHistory) -> Table | None:
    """Return the table; None before telemetry arrived."""
    block = next((block for block in reversed(history.done_blocks()) if block.telemetry), None)
    if block is None:
        return None
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column(f"in trial {block.trial_number}", no_wrap=True)
    for title in ("busy", "SMs active", "memory", "power", "clock"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("reduced clocks")
    for node in block.telemetry:
        for device in node.devices:
            table.add_row(*_device_cells(node, device))
        if not node.devices:
            cells = (_share(node.session_cpu), "", spell_memory(node.memory_bytes))
            table.add_row(Text(f"{node.agent} CPUs"), *cells)
    return table


def _device_cells(node: NodeTelemetry, device: DeviceTelemetry) -> tuple[str | Text, ...]:
    reasons = ", ".join(f"{name} {spell_share(part)}" for name, part in device.throttled.items())
    return (
        Text(f"{node.agent} GPU {device.index}"),
        _share(device.busy),
        _share(device.sm_active) if device.sm_active else "",
        spell_memory(device.memory_bytes),
        f"{device.power_w.mean:.0f} W" if device.power_w else "",
        f"{device.sm_clock_mhz:.0f} MHz" if device.sm_clock_mhz else "",
        Text(reasons, style="yellow"),
    )


def _share(spread: Spread) -> str:
    return spell_share(spread.mean)


if TYPE_CHECKING:
    from advisor.cli.connection import Reader

_WHEN = "then: a date or time such as 2026-11-20 (UTC), or how long ago, such as 36h or 7d"


def list_jobs(
    context: typer.Context,
    state: Annotated[list[JobState] | None, typer.Option(help="Only jobs in this state; repeatable.")] = None,
    owner: Annotated[str | None, typer.Option(help="Only jobs of this owner.")] = None,
    name: Annotated[
        str | None, typer.Option(help="Only jobs of this name; 'train*' for all that begin so.")
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY[=VALUE]", help="Only jobs with this label; of several, with all of them."),
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="WHEN", help=f"Only jobs submitted {_WHEN}, or later.")
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="WHEN", help=f"Only jobs submitted before {_WHEN}.")
    ] = None,
    archived: Annotated[bool, typer.Option("--archived", help="Archived jobs as well.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Most jobs to list.")] = 20,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first."""
    screen = screen_of(context)
    now = datetime.now(UTC)
    wanted = JobQuery(
        state=tuple(state or ()),
        owner=owner,
        name=name,
        label=tuple(label or ()),
        created_since=None if since is None else read_moment(since, now),
        created_until=None if until is None else read_moment(until, now),
        archived=archived,
        limit=limit,
    )
    with look_at(os.environ) as client:
        jobs = connection.list_jobs(client, wanted, limit)
        gains = {job.id: _read_gain(client, job) for job in jobs}
    if as_json:
        told = [
            job.model_dump(mode="json") | {"gain": gain and gain.model_dump(mode="json")}
            for job in jobs
            for gain in (gains[job.id].gain,)
        ]
        screen.print_json({"items": told})
    elif not jobs and wanted != JobQuery(limit=limit):
        screen.tell("No job fits. `advisor jobs --archived` lists all of them.")
    elif not jobs:
        screen.tell("No jobs yet. Make one: advisor tune -- torchrun --nproc-per-node 2 train.py")
    elif screen.is_piped:
        for line in list_as_tsv(jobs, gains, now):
            screen.print_list(line)
    else:
        screen.show(_jobs_table(jobs, gains, now))


def show(context: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Show where a job stands and what it measured so far."""
    screen = screen_of(context)
    with look_at(os.environ) as client:
        found = resolve_job(client, job)
        if as_json:
            screen.print_json(found)
            return
        history = client.history(found.id)
    screen.show(Text(f"{found.spec.name} ({found.id})", style="bold"))
    screen.show(describe_progress(found, history, found.finished_at or datetime.now(UTC)))
    if found.state_reason:
        screen.show(found.state_reason)
    screen.show(Text(f"command: {' '.join(found.spec.workload.command)}", style="dim"))
    screen.show(Text(f"in {found.spec.workload.working_dir}, on {found.cluster.describe()}", style="dim"))
    if history.trials:
        screen.show(_trials_table(history, found.rate_unit))
    if (devices := devices_table(history)) is not None:
        screen.show(devices)
    if found.state is JobState.FINISHED:
        screen.tell(f"The answer: advisor advice {found.id}")


def watch(
    context: typer.Context,
    job: JobArgument,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,  # noqa: ARG001 - its callback tells the screen
) -> None:
    """Follow a job until it is over. Ctrl-C stops watching, not the job. With --json: one event a line."""
    screen = screen_of(context)
    with connect(os.environ) as client:
        ended = watch_detachably(client, resolve_job(client, job), screen, events_are_the_result=as_json)
    if not as_json:
        screen.show(f"{ended.spec.name or ended.id}: {ended.state}. {ended.state_reason}")
        if ended.state is JobState.FINISHED:
            screen.tell(f"The answer: advisor advice {ended.id}")
    raise typer.Exit(exit_of_state(ended.state))


def cancel(context: typer.Context, job: JobArgument, as_json: JsonOption = False) -> None:
    """Cancel a job: its training processes are stopped, what it measured is kept."""
    screen = screen_of(context)
    with look_up(os.environ) as client:
        asked = client.cancel_job(resolve_job(client, job).id)
    if as_json:
        screen.print_json(asked)
    else:
        screen.show(f"{asked.spec.name or asked.id}: {asked.state}. {asked.state_reason}".strip())


@dataclass(frozen=True)
class _Gain:
    """What a job that has finished brings."""

    words: str = ""
    gain: Interval | None = None


def _read_gain(client: "Reader", job: Job) -> _Gain:
    """A list that lacks one gain is better than none: an answer that cannot be had is left out."""
    if job.state is not JobState.FINISHED:
        return _Gain()
    try:
        advice = client.advice(job.id)
    except ApiProblem:
        return _Gain()
    if advice.verdict is Verdict.CHANGE and advice.gain is not None:
        gain = advice.gain
        return _Gain(spell_likely(gain.ratio, gain.low, gain.high), gain)
    return _Gain("keep yours" if advice.verdict is Verdict.KEEP else "undecided", advice.gain)


def _spell_state(job: Job) -> str:
    return f"running: {STAGE_WORDS[job.stage]}" if job.state is JobState.RUNNING else str(job.state)


def list_as_tsv(jobs: Sequence[Job], gains: Mapping[str, _Gain], now: datetime) -> list[str]:
    """Tab-separated lines under a header, for other programs: figures without words, seconds."""
    lines = ["id\tname\tstate\tgain\tgain_low\tgain_high\tnodes\tage_s\tcommand"]
    for job in jobs:
        gain = gains[job.id].gain
        is_known = gain is not None and gain.quality is Quality.KNOWN
        figures = (
            ("", "", "")
            if gain is None or not is_known
            else (f"{x:.4f}" for x in (gain.ratio, gain.low, gain.high))
        )
        age = f"{(now - job.created_at).total_seconds():.0f}"
        command = " ".join(job.spec.workload.command)
        fields = (job.id, job.spec.name, job.state, *figures, job.spec.nodes, age, command)
        lines.append("\t".join(" ".join(str(field).split()) for field in fields))
    return lines


def _jobs_table(jobs: Sequence[Job], gains: Mapping[str, _Gain], now: datetime) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("id", no_wrap=True)
    table.add_column("name", no_wrap=True, overflow="ellipsis", max_width=24)
    table.add_column("state", overflow="fold")
    table.add_column("gain", no_wrap=True)
    table.add_column("nodes", no_wrap=True, justify="right")
    table.add_column("age", no_wrap=True, justify="right")
    table.add_column("command", no_wrap=True, overflow="ellipsis", ratio=1)
    for job in jobs:
        age = spell_duration((now - job.created_at).total_seconds())
        command = Text(" ".join(job.spec.workload.command))
        words = gains[job.id].words
        table.add_row(job.id, job.spec.name, _spell_state(job), words, str(job.spec.nodes), age, command)
    return table


def _trials_table(history: JobHistory, unit: str) -> Table:
    rates: dict[int, list[float]] = {}
    shares: dict[int, list[float]] = {}
    for block in history.done_blocks():
        if block.utilisation is not None:
            shares.setdefault(block.trial_number, []).append(block.utilisation)
        if block.summary and (rate := rate_of(block)) > 0:
            rates.setdefault(block.trial_number, []).append(rate)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
    table.add_column("trial", justify="right")
    table.add_column("for", no_wrap=True)
    table.add_column(unit, justify="right", no_wrap=True)
    table.add_column("busy", justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("strategy")
    for trial in history.trials:
        measured = rates.get(trial.number, [])
        mean = spell_rate(sum(measured) / len(measured)) if measured else "–"
        busy = spell_share(fmean(shares[trial.number])) if trial.number in shares else "–"
        table.add_row(
            str(trial.number), str(trial.purpose), mean, busy, _outcome(trial), spell_changes(trial.changes)
        )
    return table


def _outcome(trial: Trial) -> str:
    return str(trial.outcome).replace("_", " ") if trial.outcome else "measuring"
