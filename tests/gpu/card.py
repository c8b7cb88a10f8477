"""The card itself: NVML against `nvidia-smi`, and NCCL's collectives and communicators without the runtime."""

from statistics import median

from advisor.protocol.measured.telemetry import DeviceSample
from agent.devices.gpus import Reading
from tests.gpu.bench import Bench
from tests.gpu.check import Judgement, NotPossible
from tests.gpu.launches import SLOW_LINK, LaunchFailed, need_card
from tests.gpu.nvidia_smi import SmiSample, read_smi

BUSY_POINTS = 0.15
"""Two looks at a share of the last second or so."""
MEMORY_BYTES = 64 * 2**20
POWER_SHARE = 0.15
CLOCK_SHARE = 0.10
TEMPERATURE_C = 4.0
BUSY_S = 5.0
"""Of load before the looks."""
LOOKS = 10
"""Half a second each, until NVML answers."""
HOST_S = 0.002
"""The host's part of an allreduce over NCCL, which only queues it."""
SLOWER_THAN_HOST = 5.0
"""How much longer than the host's part the card's is on a slow link."""
KEPT_BYTES = 100 * 2**20
"""What a communicator may keep after it was destroyed."""


def check_nvml(bench: Bench) -> Judgement:
    """Under load: every figure of NVML that telemetry uses, and nvidia-smi's right after."""
    need_card(bench)
    judgement = Judgement()
    _look(bench)  # GPM's figures are averages since the sample before
    with bench.keep_busy(["--width", 4096, "--batch", 4096, "--times"], BUSY_S):
        reading = _look(bench)
        try:
            said = read_smi(bench.ask_smi())
        except OSError as error:
            raise NotPossible(f"nvidia-smi cannot be started: {error}.") from error
    if reading is None or not reading.devices:
        judgement.expect(False, "", "NVML did not answer while a card computed.")
        return judgement
    for device in reading.devices:
        if device.index not in said:
            judgement.expect(False, "", f"nvidia-smi does not name card {device.index}.")
        else:
            _compare(judgement, device, said[device.index])
    return judgement


def _look(bench: Bench) -> Reading | None:
    return next(filter(None, (bench.sample() for _ in range(LOOKS))), None)


def _compare(judgement: Judgement, nvml: DeviceSample, smi: SmiSample) -> None:
    figures = (
        ("busy", nvml.busy, smi.busy, BUSY_POINTS, 0.0),
        ("memory, bytes", nvml.memory_bytes, smi.memory_bytes, float(MEMORY_BYTES), 0.0),
        ("power, W", nvml.power_w, smi.power_w, 0.0, POWER_SHARE),
        ("SM clock, MHz", nvml.sm_clock_mhz, smi.sm_clock_mhz, 0.0, CLOCK_SHARE),
        ("temperature, °C", nvml.temperature_c, smi.temperature_c, TEMPERATURE_C, 0.0),
    )
    card = f"card {nvml.index}"
    for name, ours, theirs, room, share in figures:
        if theirs is None:
            judgement.left_out.append(f"{card}: nvidia-smi does not tell {name}.")
            continue
        agree = ours is not None and abs(ours - theirs) <= room + share * abs(theirs)
        text = f"{card} {name}: NVML {_say(ours)}, nvidia-smi {_say(theirs)}"
        judgement.expect(agree, text, f"{text}: they disagree.")
    judgement.note(f"{card} reduced clocks: {nvml.throttled or 'no reason'}")
    if nvml.sm_active is None:
        judgement.left_out.append(f"{card} has no GPM (Hopper and newer have).")
    else:
        judgement.expect(
            0.0 < nvml.sm_active <= 1.0,
            f"{card} SMs active {nvml.sm_active:.2f}, tensor cores {_say(nvml.tensor_active)}",
            f"{card}: GPM says that {nvml.sm_active} of the SMs were active under load.",
        )


def _say(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def check_nccl(bench: Bench) -> Judgement:
    """A communicator of its own made, used and given back; what host and events say of a slow link."""
    need_card(bench)
    judgement = Judgement()
    alone = bench.run_bare("collectives.py", [], ranks=1)
    group = alone.collect("kept_bytes")
    if not group:
        raise LaunchFailed(f"NCCL with one rank: {alone.describe_end()}")
    made, right, configured = (alone.collect(key)[0] for key in ("group_bytes", "is_right", "is_configured"))
    judgement.expect(right, "", "An allreduce in a communicator of its own gave a wrong sum.")
    judgement.note(
        f"one rank: a communicator takes {made / 2**20:.0f} MiB"
        f"{', with its minimum of CTAs set' if configured else '; this torch has no configuration for it'}"
    )
    kept = f"keeps {group[0] / 2**20:.0f} MiB after it was destroyed"
    judgement.expect(
        group[0] <= KEPT_BYTES, kept, f"A communicator {kept}: {KEPT_BYTES / 2**20:.0f} are allowed."
    )
    pair = bench.run_bare("collectives.py", [], ranks=2, variables=SLOW_LINK)
    host, event = pair.collect("host_s"), pair.collect("event_s")
    if not host or pair.code:
        raise LaunchFailed(f"NCCL with two ranks: {pair.describe_end()}")
    text = f"pair without P2P and SHM: host {median(host) * 1e3:.2f} ms, events {median(event) * 1e3:.2f} ms"
    judgement.expect(median(host) < HOST_S, text, f"{text}: the host waited for the collective.")
    judgement.expect(
        median(event) > SLOWER_THAN_HOST * median(host), "", f"{text}: the events do not show it."
    )
    return judgement
