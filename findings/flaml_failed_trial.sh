#!/usr/bin/env bash
# flaml 2.8.0: in tune.run() one evaluation that returns {} or None ends the whole tuning, without a word and with a best
# configuration: 2 of 12 evaluations are made. The code marks {} as a trial in error and stops all the same. float("nan") goes
# on (12 of 12). And time_budget_s=2 alone makes one evaluation, as num_samples is 1 unless it is said to be -1.
# One would guess that an empty result is a failed trial and that the next one comes, as in Ray Tune, whose interface it is,
# and that a budget of time is used up.
# It matters because a training that runs out of memory has no metric: a wrapper that catches that and returns {} (in place
# of a bad number) ends the search at its first bad setting, and what it returns looks like a finished one.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet flaml==2.8.0 optuna==5.0.0 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PY'
import logging
import sys

from flaml import tune

logging.disable(logging.CRITICAL)


def evaluations(second, **budget) -> int:
    points: list[float] = []

    def train(config):
        points.append(config["x"])
        return second if len(points) == 2 else {"loss": (config["x"] - 0.3) ** 2}

    found = tune.run(train, config={"x": tune.uniform(0, 1)}, metric="loss", mode="min", verbose=0, **budget)
    print(f"the second returns {second}, {budget}: {len(points)} evaluations, best {found.best_config}")
    return len(points)


counts = [evaluations(second, num_samples=12) for second in ({"loss": 0.5}, {"loss": float("nan")}, {}, None)]
counts.append(evaluations({"loss": 0.5}, time_budget_s=2))
expected = counts == [12, 12, 2, 2, 1]
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
