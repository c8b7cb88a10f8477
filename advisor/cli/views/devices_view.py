"""What each device did while the latest block was measured, as a table in plain text: a function of the history."""

from rich import box
from rich.table import Table
from rich.text import Text

from advisor.protocol.gains import spell_share
from advisor.protocol.measured.telemetry import DeviceTelemetry, NodeTelemetry, Spread
from advisor.protocol.measured.trials import JobHistory
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
