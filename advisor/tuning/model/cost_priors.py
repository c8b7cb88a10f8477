"""What the cost model believes of its parameters before anything is measured, by device, backend and links."""

import math
from collections.abc import Sequence

import numpy as np

from advisor.protocol.knobs.knob import KnobContext
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.nodes.testbed import burst_bytes
from advisor.tuning.model.learned_factors import Piece
from advisor.tuning.model.map_fit import Prior, Unknown
from advisor.tuning.model.step_model import Probe

_WAITS = 0.02
"""A smaller share of the step is no wait for a reader."""
TOLD_SPREAD = 0.4
"""Standard deviation of ln(seconds per byte) of a link whose nominal rate is all that is known of it."""
PAYLOAD = 0.94
"""Share of a link's nominal rate that carries data (headers of TCP, IP and Ethernet)."""


def link_bits_per_s(context: KnobContext) -> float | None:
    """Return the nominal rate of the slowest node's fastest link, in bits per second; None where none is known."""
    rates: list[float] = []
    for node in context.cluster.nodes:
        known = [float(link.bits_per_second) for link in node.links if link.bits_per_second]
        if node.testbed is not None:
            rates.append(float(node.testbed.bits_per_s))
        elif known:
            rates.append(max(known))
    return min(rates) if rates and len(rates) == len(context.cluster.nodes) else None


def find_burst_s(context: KnobContext, bits_per_s: float | None) -> float:
    """Return what links of that rate pass at once after a rest, in seconds: a testbed's; others are not known to."""
    shaped = bits_per_s and context.facts.nodes > 1 and any(node.testbed for node in context.cluster.nodes)
    return 8.0 * burst_bytes(bits_per_s) / bits_per_s if shaped and bits_per_s else 0.0


def prior_of(context: KnobContext, probe: Probe, pieces: Sequence[Piece], timed: bool) -> Prior:
    """Return the prior; `timed` says that gradients were timed, so that their order needs no bending.

    Latencies and bandwidths are orders of magnitude of TCP over sockets (gloo) and of NCCL, with spreads of a factor
    of two to three; a testbed's links are known, because it shaped them.
    """
    facts = context.facts
    nccl, cuda = "nccl" in facts.backend, facts.device is DeviceKind.CUDA
    shaped = any(node.testbed for node in context.cluster.nodes)
    bits_per_s = link_bits_per_s(context)
    wire = 8.0 / (PAYLOAD * bits_per_s) if bits_per_s else (1e-10 if nccl else 1e-9)
    wire_spread = (0.1 if shaped else TOLD_SPREAD) if bits_per_s else 1.0
    beliefs: dict[Unknown, tuple[float, float]] = {
        Unknown.COMPUTATION: (1.0, 0.05),
        Unknown.BACKWARD: (1.0, 0.15),
        Unknown.HOP: (15e-6 if nccl else 100e-6, 0.7),
        Unknown.INNER_HOP: (4e-6 if nccl else 50e-6, 0.7),
        Unknown.WIRE: (wire, wire_spread),
        Unknown.INNER_WIRE: (2e-11 if nccl else 5e-11, 1.0 if nccl else 0.3),
        Unknown.HANDLING: (0.3 * wire, 1.0) if nccl else (7e-10, 0.7),
        Unknown.MESSAGE: (20e-6 if nccl else 300e-6, 0.8),
        Unknown.COPY: (2e-12 if cuda else 5e-10, 0.7),
        Unknown.STOLEN: (0.3 if cuda else 0.7, 0.5),
        Unknown.JITTER: (0.03, 1.3),
        Unknown.BEND: (1.0, 0.05 if timed else 0.4),
        Unknown.READING: _reading(context, probe),
        Unknown.READER: (1.0, 0.3),
        Unknown.INNER_HANDLING: (1e-11, 1.0) if nccl else (7e-10, 0.7),
        Unknown.LAUNCHING: (0.4 * probe.step_s, 0.5),
    }
    means = [math.log(beliefs[unknown][0]) for unknown in Unknown] + [piece.mean for piece in pieces]
    spreads = [beliefs[unknown][1] for unknown in Unknown] + [piece.spread for piece in pieces]
    return Prior(mean=np.array(means, dtype=np.float64), spread=np.array(spreads, dtype=np.float64))


def _reading(context: KnobContext, probe: Probe) -> tuple[float, float]:
    """What one process takes to read a batch, in seconds, and how sure that is.

    Seen in full where the training process reads itself, or where workers set the pace. Where it never waits for
    them it is less than they can hide, by an unknown factor.
    """
    workers = int(context.baseline["loader_num_workers"])
    if workers == 0:
        return max(probe.wait_s, 1e-5), 0.1
    if probe.wait_s > _WAITS * probe.step_s:
        return workers * probe.step_s, 0.15
    return 0.3 * workers * probe.step_s, 0.6
