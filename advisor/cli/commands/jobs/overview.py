"""`advisor show`, `watch` and `cancel`: one job of a server."""

import os
from datetime import UTC, datetime
from statistics import fmean

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from advisor.answers.wording import spell_changes
from advisor.cli.connection import connect, look_at, look_up, resolve_job
from advisor.cli.exits import exit_of_state
from advisor.cli.options import JobArgument, JsonOption, VerboseOption, screen_of
from advisor.cli.tuning.follow import watch_detachably
from advisor.cli.views.progress import describe_progress
from advisor.protocol.asked.jobs import JobState
from advisor.protocol.gains import spell_rate, spell_share
from advisor.protocol.measured.estimates import rate_of
from advisor.protocol.measured.telemetry import DeviceTelemetry, NodeTelemetry, Spread
from advisor.protocol.measured.trials import JobHistory, Trial
from advisor.protocol.nodes.cluster import spell_memory


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
