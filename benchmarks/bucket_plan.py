"""Races planned buckets against the best single size on shaped links, and tells predicted beside measured exposed time.

    python benchmarks/bucket_plan.py [--rates 100mbit 300mbit 1gbit] [--races 3] [--width 256]

For each rate: a first launch times gradients and links; a second one races the single sizes that theory and rules of
thumb favour, and the fastest of them is the best single size; a third one races that and the plan, several times, so
that the choice of the best among many does not flatter it. Exposed times are the profiled steps' own, without waiting
for late ranks. In the end each rate's are predicted from what was timed at the next one, as if its link were held out.
Needs root, because the nodes are network namespaces.
"""

import argparse
import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any

from sessions import ROOT, Ranks, SessionFailed, run_session

sys.path.insert(0, str(ROOT))

from advisor.local.testbed import build_testbed, unavailable_because
from advisor.protocol.base import Value
from advisor.protocol.measured.results import BlockResult, GradientTiming
from advisor.protocol.nodes.testbed import Testbed
from advisor.tuning.measure.contrast import contrast_arms
from advisor.tuning.measure.student_t import t_quantile
from advisor.tuning.model.bucket_plan import (
    LEAST_GAIN,
    BucketPlan,
    Link,
    fit_link,
    plan_buckets,
    predict_exposed,
)
from agent.sessions.control import parse_result

MIB = 2**20
RULES = {"warmup_steps": 4, "min_steps": 10, "max_steps": 80, "target_s": 4.0, "profile_steps": 6}
UNITS = {"mbit": 1e6, "gbit": 1e9}


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
        link = fit_link(timed.links) if timed else None
        plan = plan_buckets(timed.gradients, link, (MIB, 25 * MIB)) if timed and link else None
        if timed is None or link is None or plan is None:
            raise SystemExit("The probe timed no gradients or no links.")
        total = sum(gradient.bytes for gradient in timed.gradients) / MIB
        sizes = sorted({round(size, 3) for size in (plan.single_mb, *(total / 2**i for i in range(limit)))})
        found = run([{"arms": {f"{size:g}": single_size(size) for size in sizes}}])[0]
        single_mb = min(sizes, key=lambda size: fmean(parse_result(found[f"{size:g}"]).step_time_s))
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
        exposed={name: fmean(race[name].phases.exposed_comm_s or 0.0 for race in raced) for name in arms},
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


def read_rate(text: str) -> float:
    return float(text[:-4]) * UNITS[text[-4:]]


def report(one: Measured) -> None:
    plan, link = one.plan, one.link
    worth = (plan.single_s - plan.planned_s) / one.step_s
    verdict = "offered" if worth >= LEAST_GAIN else f"not offered: {worth:+.1%} of a step by theory"
    print(f"{one.rate}: α {1000 * link.alpha_s:.2f} ms, β {1000 * link.beta_s * MIB:.2f} ms a MB, ", end="")
    print(f"backward {1000 * one.gradients[-1].ready_s:.1f} ms, step {1000 * one.step_s:.1f} ms")
    print(f"  plan {list(plan.sizes_mb)} MB ({verdict}), in force {one.buckets} buckets")
    print(f"  best single size {one.single_mb:g} MB, by theory {plan.single_mb:.3g} MB")
    for arm, measured in one.exposed.items():
        predicted = predict_exposed(one.gradients, link, one.caps_of(arm))
        print(f"  exposed, {arm}: measured {1000 * measured:.1f} ms, predicted {1000 * predicted:.1f} ms")
    mean, low, high = (math.expm1(value) for value in one.gain)
    print(f"  plan against best single size: {mean:+.1%} ({low:+.1%} … {high:+.1%})", flush=True)


def report_held_out(one: Measured, other: Measured) -> None:
    """What gradients and link of another rate say of this one, the other's β scaled by the rates."""
    link = replace(other.link, beta_s=other.link.beta_s * read_rate(other.rate) / read_rate(one.rate))
    for arm, measured in one.exposed.items():
        predicted = predict_exposed(other.gradients, link, one.caps_of(arm))
        print(f"{one.rate} from {other.rate}, {arm}: measured {1000 * measured:.1f} ms, ", end="")
        print(f"predicted {1000 * predicted:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", nargs="+", default=["100mbit", "300mbit", "1gbit"])
    parser.add_argument("--races", type=int, default=3)
    parser.add_argument("--sizes", type=int, default=6, help="single sizes, each half of the one before")
    parser.add_argument("--width", type=int, default=256, help="of the bundled decoder")
    arguments = parser.parse_args()
    if reason := unavailable_because():
        raise SystemExit(f"no testbed: {reason}")
    script = ROOT / "agent" / "workloads" / "decoder.py"
    words = (str(script), "--width", str(arguments.width), "--vocabulary", "2048")
    try:
        found = []
        for rate in arguments.rates:
            found.append(measure(rate, words, arguments.races, arguments.sizes))
            report(found[-1])
        for one, other in pairwise(found):
            report_held_out(one, other)
    except SessionFailed as failed:
        raise SystemExit(str(failed)) from failed


if __name__ == "__main__":
    main()
