"""The table of devices in `advisor show`."""

from io import StringIO

from rich.console import Console

from advisor.cli.commands.jobs.overview import devices_table
from advisor.protocol.measured.telemetry import DeviceTelemetry, NodeTelemetry, Spread
from advisor.protocol.measured.trials import Block, BlockPlan, BlockState, BlockSummary, JobHistory

from .fake_server import BIRTH


def even(value: float) -> Spread:
    return Spread(mean=value, median=value, max=value)


def node(agent: str, *devices: DeviceTelemetry) -> NodeTelemetry:
    return NodeTelemetry(
        agent=agent, samples=3, cpu=even(0.5), session_cpu=even(0.42), memory_bytes=3_000_000_000,
        network_bytes_per_s=0.0, devices=devices,
    )  # fmt: skip


def block(*nodes: NodeTelemetry) -> Block:
    summary = BlockSummary(
        samples_per_s=1.0, log_step_time=0.0, log_step_time_se=0.0, steady_steps=1, steady=True,
        median_step_time_s=1.0, p95_step_time_s=1.0,
    )  # fmt: skip
    plan = BlockPlan(block_id="b", trial_number=7)
    return Block(
        id="b", session_id="s", trial_number=7, ordinal=0, race=1, state=BlockState.DONE, plan=plan, summary=summary,
        issued_at=BIRTH, telemetry=nodes,
    )  # fmt: skip


def render(history: JobHistory) -> str:
    out = StringIO()
    Console(file=out, width=120).print(devices_table(history))
    return out.getvalue()


def test_nothing_is_shown_before_telemetry_arrived() -> None:
    assert devices_table(JobHistory(blocks=(block(),))) is None


def test_devices_of_the_latest_block_with_telemetry_are_shown() -> None:
    hot = DeviceTelemetry(
        index=3, busy=even(0.97), sm_active=even(0.71), memory_bytes=101 * 2**30, power_w=even(450.0),
        sm_clock_mhz=1275.0, throttled={"HwThermalSlowdown": 0.85},
    )  # fmt: skip
    text = render(JobHistory(blocks=(block(node("old")), block(node("a0", hot), node("cpu-node")), block())))
    assert "in trial 7" in text
    assert "old" not in text
    line = next(line for line in text.splitlines() if "GPU 3" in line)
    for word in ("a0", "97 %", "71 %", "101 GiB", "450 W", "1275 MHz", "HwThermalSlowdown 85 %"):
        assert word in line
    assert "cpu-node CPUs" in text
    assert "42 %" in text
