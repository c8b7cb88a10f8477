"""The headline figures of the Fleet documents: which of them the cost model and the bucket rules give, and how closely.

    python benchmarks/document_figures.py [--output docs/results/document_figures.md]

Nothing is measured here: the documents ran on 4 × 8 V100. Their local-SGD table is fitted by all of its rows, predicted
row by row from the others, and predicted from its first row alone; their count of fused allreduces is compared with the
buckets that DDP's and our rules make of the same model.
"""

import argparse
import sys
from pathlib import Path
from statistics import fmean

import torch
from torch.distributed import _compute_bucket_assignment_by_size

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "agent" / "workloads")]

from resnet50 import build_model  # noqa: E402

from agent.runtime.levers.buckets.bucket_plan import BucketPlan  # noqa: E402
from agent.runtime.levers.buckets.layer_buckets import cap_by_layers  # noqa: E402
from tests.unit.tuning.documents_table import ADAPTIVE_IMAGES_PER_S, IMAGES_PER_S, find_errors  # noqa: E402

FUSED_MB, FUSED_LAYERS, FUSED = 16, 50, 6
"""The documents' setting for ResNet, and the number of allreduces that it left of 161."""


def count_buckets() -> tuple[int, int, int]:
    """Return ResNet-50's gradients, DDP's buckets of that size, and those with the limit on layers as well."""
    model = build_model(argparse.Namespace(width=64, classes=1000))
    owned = [
        (layer, parameter)
        for layer, module in enumerate(model.modules())
        for parameter in module.parameters(recurse=False)
    ][::-1]
    cap = FUSED_MB * 2**20
    tensors = [torch.empty_like(parameter) for _, parameter in owned]
    by_size, _ = _compute_bucket_assignment_by_size(tensors, [cap])
    plan = BucketPlan(cap, cap, most_layers=FUSED_LAYERS)
    caps = cap_by_layers([(layer, parameter.numel() * 4) for layer, parameter in owned], plan)
    return len(owned), len(by_size), len(caps)


def write_page() -> str:
    """Return the page."""
    rows = list(IMAGES_PER_S)
    fitted, first = find_errors(rows[1:]), find_errors([])
    others = {k: find_errors([row for row in rows[1:] if row != k])[k] for k in rows[1:]}
    lines = [
        "# The documents' own figures",
        "",
        "`python benchmarks/document_figures.py --output docs/results/document_figures.md`",
        "",
        "Local SGD, ResNet-50 on 4 × 8 V100 (images/s by the interval k). *Fit*: the cost model calibrated",
        "with all rows. *From the others*: each row left out. *From k = 1*: nothing known but the first row, and",
        "phases that the documents do not tell (a V100's usual ones).",
        "",
        "| k | documents | fit | from the others | from k = 1 alone |",
        "|---|---|---|---|---|",
    ]
    for k, rate in IMAGES_PER_S.items():
        told = f"{others[k]:+.1%}" if k in others else ""
        lines.append(f"| {k} | {rate:.0f} | {fitted[k]:+.1%} | {told} | {first[k]:+.1%} |")
    means = [fmean(map(abs, errors.values())) for errors in (fitted, others, {k: first[k] for k in rows[1:]})]
    lines.append(f"| mean of the sizes | | {means[0]:.1%} | {means[1]:.1%} | {means[2]:.1%} |")
    gradients, by_size, by_layers = count_buckets()
    nearest = min(IMAGES_PER_S, key=lambda k: abs(IMAGES_PER_S[k] - ADAPTIVE_IMAGES_PER_S))
    lines += [
        "",
        f"The adaptive schedule ({ADAPTIVE_IMAGES_PER_S:.0f} images/s) is not predicted: its interval follows the loss",
        f"of 90 epochs, which no short trial sees. Its throughput is nearest to that of k = {nearest}.",
        "",
        f"Fusion: the documents make {FUSED} of ResNet-50's {gradients} allreduces, with {FUSED_MB} MB and at most",
        f"{FUSED_LAYERS} layers a group. DDP's rule makes {by_size} such buckets, and {by_layers} with the limit",
        "on layers, a convolution and its norm being two.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    page = write_page()
    print(page)
    if arguments.output:
        arguments.output.write_text(page)


if __name__ == "__main__":
    main()
