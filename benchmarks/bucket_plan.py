"""Races planned buckets against the best single size on shaped links, and tells predicted beside measured exposed time.

    python benchmarks/bucket_plan.py [--rates 100mbit 300mbit 1gbit 10gbit] [--races 3] [-- vgg16.py --width 24]

For each rate: a first launch times gradients and links; a second one races the single sizes that theory and rules of
thumb favour, and the fastest of them is the best single size; a third one races that and the plan, several times, so
that the choice of the best among many does not flatter it. Exposed times are the profiled steps' own, without waiting
for late ranks. In the end each rate's are predicted from what the probe of each other one measured, as if its link were
held out; refused where no link sets the pace there or here. Needs root, because the nodes are network namespaces.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import permutations
from statistics import fmean, stdev
from typing import Any

from sessions import ROOT, Ranks, SessionFailed, run_session

sys.path.insert(0, str(ROOT))

from advisor.local.testbed import build_testbed, unavailable_because
from advisor.protocol.base import Value
from advisor.protocol.measured.results import BlockResult, GradientTiming
from advisor.protocol.nodes.cluster import DeviceKind
from advisor.protocol.nodes.testbed import Testbed, read_rate
from advisor.tuning.measure.contrast import contrast_arms
from advisor.tuning.measure.student_t import t_quantile
from advisor.tuning.model.bucket_plan import (
    LEAST_GAIN,
    BucketPlan,
    Link,
    anchor_link,
    at_work,
    expose,
    fit_link,
    plan_buckets,
    quieten,
)
from advisor.tuning.model.cost_priors import PAYLOAD
from agent.sessions.control import parse_result

MIB = 2**20
OWN = (float(MIB), 25.0 * MIB)
"""DDP's caps as the workloads leave them."""
RULES = {"warmup_steps": 3, "min_steps": 6, "max_steps": 60, "target_s": 3.0, "profile_steps": 4}
LINK_BOUND = 1.3
"""A byte takes that many times of what the nominal rate says at most, or the ranks set the pace and not the link."""


@dataclass(frozen=True)
class Measured:
    """One rate."""

    rate: str
    gradients: tuple[GradientTiming, ...]
    link: Link
    step_s: float
    plan: BucketPlan
    single_mb: float
    """The size that was the fastest."""
    buckets: int
    """Of the plan, from DDP's own log."""
    exposed: Mapping[str, float]
    """Measured seconds by arm."""
    gain: tuple[float, float, float]
    """ln(throughput of the plan / of the best single size), and its interval."""

    def caps_of(self, arm: str) -> tuple[float, ...]:
        sizes = self.plan.sizes_mb if arm == "plan" else (self.single_mb,)
        return tuple(size * MIB for size in sizes)


def single_size(size_mb: float) -> dict[str, Value]:
    return {"fuse_grad_size_in_MB": size_mb, "last_comm_group_size_MB": size_mb}


def measure(rate: str, words: Sequence[str], races: int, limit: int) -> Measured:
    with ExitStack() as stack:
        nodes = stack.enter_context(build_testbed(Testbed(nodes=2, rate=rate)))
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fa-buckets-"))
        ranks = Ranks(
            nproc_per_node=1,
            node_prefixes=tuple(node.prefix for node in nodes),
            master_address=nodes[0].address,
            interface="eth0",
        )

        def run(blocks: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
            return run_session(words, [{**RULES, **block} for block in blocks], ranks, {"OUT": folder})

        probe = parse_result(run([{"calibrate": True}])[0])
        timed = probe.calibration
        idle = fit_link(timed.links) if timed else None
        if timed is None or idle is None:
            raise SystemExit("The probe timed no gradients or no links.")
        exposed_s = probe.phases.exposed_comm_s
        link = anchor_link(at_work(idle, DeviceKind.CPU, "gloo"), timed.gradients, OWN, exposed_s)
        plan = plan_buckets(timed.gradients, link, OWN) if link else None
        if link is None or plan is None:
            raise SystemExit(f"The model misses the {exposed_s} s that the probe's own buckets exposed.")
        total = sum(gradient.bytes for gradient in timed.gradients) / MIB
        sizes = sorted({round(size, 3) for size in (plan.single_mb, *(total / 2**i for i in range(limit)))})
        found = run([{"arms": {f"{size:g}": single_size(size) for size in sizes}}])[0]
        # A size that makes the buckets of another one is not timed again.
        times = {size: parse_result(found[f"{size:g}"]).step_time_s for size in sizes}
        single_mb = min((size for size in sizes if times[size]), key=lambda size: fmean(times[size]))
        listed = "+".join(f"{size:g}" for size in plan.sizes_mb)
        arms = {"single": single_size(single_mb), "plan": {"bucket_cap_mb_list": listed}}
        raced = [
            {name: parse_result(result) for name, result in race.items()}
            for race in run([{"arms": arms}] * races)
        ]
    return Measured(
        rate=rate,
        gradients=timed.gradients,
        link=link,
        step_s=fmean(probe.step_time_s),
        plan=plan,
        single_mb=single_mb,
        buckets=len(raced[0]["plan"].bucket_bytes),
        exposed={
            name: fmean(told)
            for name in arms
            if (told := [s for race in raced if (s := race[name].phases.exposed_comm_s) is not None])
        },
        gain=compare(raced),
    )


def compare(raced: Sequence[Mapping[str, BlockResult]]) -> tuple[float, float, float]:
    for race in raced:
        if refused := race["plan"].not_consumed:
            raise SystemExit(f"The plan was not in force: {refused}")
    contrasts = [
        found for race in raced if (found := contrast_arms(race["plan"], race["single"])) is not None
    ]
    if len(contrasts) < 2:
        raise SystemExit("--races must be 2 at least: an interval needs two races")
    means = [found.mean for found in contrasts]
    between = t_quantile(0.975, len(means) - 1) * stdev(means) / math.sqrt(len(means))
    within = math.hypot(*(c.error for c in contrasts)) / len(contrasts)
    half = max(between, t_quantile(0.975, sum(c.freedom for c in contrasts)) * within)
    return fmean(means), fmean(means) - half, fmean(means) + half


def report(one: Measured) -> None:
    plan, link = one.plan, one.link
    worth = (plan.single_s - plan.planned_s) / one.step_s
    verdict = "offered" if worth >= LEAST_GAIN else f"not offered: {worth:+.1%} of a step by theory"
    print(f"{one.rate}: α {1000 * link.alpha_s:.2f} ms, β {1000 * link.beta_s * MIB:.2f} ms a MB, ", end="")
    print(f"in a step {link.load:.2f} times that, ", end="")
    print(f"backward {1000 * one.gradients[-1].ready_s:.1f} ms, step {1000 * one.step_s:.1f} ms")
    print(f"  plan {list(plan.sizes_mb)} MB ({verdict}), in force {one.buckets} buckets")
    print(f"  best single size {one.single_mb:g} MB, by theory {plan.single_mb:.3g} MB")
    for arm, measured in one.exposed.items():
        print(f"  exposed, {arm}: {spell(measured, predict(one, link, one.caps_of(arm)))}")
    mean, low, high = (math.expm1(value) for value in one.gain)
    print(f"  plan against best single size: {mean:+.1%} ({low:+.1%} … {high:+.1%})", flush=True)


def predict(probed: Measured, link: Link, caps: Sequence[float]) -> float:
    """Exposed seconds on a link, gradients becoming ready as one rate's probe saw them."""
    return expose(quieten(probed.gradients, probed.link, OWN), link, caps)


def spell(measured: float, predicted: float) -> str:
    off = predicted / max(measured, 1e-9) - 1.0
    return f"measured {1000 * measured:.1f} ms, predicted {1000 * predicted:.1f} ms ({off:+.0%})"


def report_held_out(one: Measured, other: Measured) -> None:
    """What the probe of another rate says of this one: its β scaled by the rates."""
    bits, from_bits = read_rate(one.rate), read_rate(other.rate)
    link = replace(other.link, beta_s=other.link.beta_s * from_bits / bits)
    if other.link.beta_s > LINK_BOUND * 8.0 / (PAYLOAD * from_bits):
        print(f"{one.rate} from {other.rate}: refused, there the ranks set the pace and not the link")
    elif link.reduce_s(sum(g.bytes for g in other.gradients)) < other.gradients[-1].ready_s:
        print(
            f"{one.rate} from {other.rate}: refused, reductions would hide behind backward but for the last"
        )
    else:
        for arm, measured in one.exposed.items():
            told = spell(measured, predict(other, link, one.caps_of(arm)))
            print(f"{one.rate} from {other.rate}, {arm}: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", nargs="+", default=["100mbit", "300mbit", "1gbit", "10gbit"])
    parser.add_argument("--races", type=int, default=3)
    parser.add_argument("--sizes", type=int, default=5, help="single sizes, each half of the one before")
    parser.add_argument(
        "workload", nargs="*", default=["decoder.py", "--width", "256", "--vocabulary", "2048"]
    )
    arguments = parser.parse_args()
    if reason := unavailable_because():
        raise SystemExit(f"no testbed: {reason}")
    script, *options = arguments.workload
    words = (str(ROOT / "agent" / "workloads" / script), *options)
    try:
        found = []
        for rate in arguments.rates:
            found.append(measure(rate, words, arguments.races, arguments.sizes))
            report(found[-1])
        for one, other in permutations(found, 2):
            report_held_out(one, other)
    except SessionFailed as failed:
        raise SystemExit(str(failed)) from failed


if __name__ == "__main__":
    main()
