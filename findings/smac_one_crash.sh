#!/usr/bin/env bash
# smac 2.4.1 with its defaults: ONE evaluation that raises, or is told as CRASHED, ends the whole optimization as soon as the
# model is fitted, with "ValueError: Input y contains NaN": the default crash_cost is infinity, and the cost is scaled.
# Scenario(crash_cost=1e3) goes on to the end. Besides, the space's default is not among the points evaluated.
# One would guess that a crash counts as a bad point, which is what SMAC is known for and what its log says ("Result is
# treated as CRASHED and cost is set to inf"), and that the default configuration is evaluated first, as the original SMAC does.
# It matters because settings that end a training (out of memory) are the normal case in tuning one, and because the
# user's own settings, given as defaults, are never measured unless get_initial_design(additional_configs=...) is given them.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet smac==2.4.1 ConfigSpace==1.2.2 scikit-learn==1.9.1 numpy==2.4.6
cd "$folder"
venv/bin/python - 2>/dev/null <<'PY'
import sys

from ConfigSpace import ConfigurationSpace, Float
from smac import HyperparameterOptimizationFacade, Scenario


def optimize(crashes: int, **more: float) -> str:
    space = ConfigurationSpace(seed=0)
    space.add(Float("x", (0.0, 1.0), default=0.5))
    seen: list[float] = []

    def train(config, seed: int = 0) -> float:
        seen.append(config["x"])
        if len(seen) <= crashes:
            raise MemoryError
        return config["x"]

    scenario = Scenario(space, n_trials=12, deterministic=True, seed=2, **more)
    search = HyperparameterOptimizationFacade(scenario, train, overwrite=True, logging_level=False)
    try:
        search.optimize()
    except ValueError as error:
        return f"{len(seen)} evaluations, then ValueError: {str(error).splitlines()[0]}"
    return f"{len(seen)} evaluations, the default among them: {0.5 in seen}"


told = [optimize(0), optimize(1), optimize(1, crash_cost=1e3)]
for what, line in zip(("no crash", "the first crashes", "the same, crash_cost=1e3"), told):
    print(f"{what}: {line}")
whole = "12 evaluations, the default among them: False"
expected = told[0] == told[2] == whole and told[1].endswith("then ValueError: Input y contains NaN.")
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
