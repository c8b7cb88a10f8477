#!/usr/bin/env bash
# pingouin 0.7.0: the interval of ttest() is rounded to two decimals in the returned data (not only when printed), though
# options["round"] is None: step times in seconds that differ by 1.2 ms with p=0.0009 come with CI95 [0, 0], and
# compute_bootci() of a mean of 12.3 ms gives [0.01, 0.01]. In milliseconds the same data give [0.55, 1.77].
# Besides, "Welch where it is needed" looks at the numbers of measurements only: equally many give Student's test with 18
# degrees of freedom although one arm scatters ten times as much as the other; one measurement less gives Welch's, with 8.
# One would guess full precision in the table, as p_val has it, and Welch's test for unequal variances.
# It matters to a gate in CI that reads the interval: an interval of [0, 0] neither excludes nor contains a change, and
# options["round.column.CI95"] = None is needed (decimals= for compute_bootci).
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet pingouin==0.7.0 pandas==3.1.1 scipy==1.17.1 numpy==2.4.6
"$folder/venv/bin/python" - 2>/dev/null <<'PY'
import sys

import numpy as np
import pingouin

rng = np.random.default_rng(0)
before = 0.0123 + rng.normal(0, 0.0001, 10)
after = 0.0116 + rng.normal(0, 0.001, 10)


def told(a, b) -> tuple[list[float], int]:
    row = pingouin.ttest(a, b).iloc[0]
    print(f"p={row['p_val']:.4f} dof={row['dof']:.1f} CI95={list(map(float, row['CI95']))}")
    return list(map(float, row["CI95"])), round(row["dof"])


seconds, student = told(before, after)
milliseconds, _ = told(before * 1e3, after * 1e3)
_, welch = told(before, after[:9])
boot = list(map(float, pingouin.compute_bootci(before, func="mean", seed=1)))
print("bootstrapped mean:", boot)
pingouin.options["round.column.CI95"] = None
free, _ = told(before, after)
expected = seconds == [0, 0] and boot == [0.01, 0.01] and 0 < free[0] < 0.01 and student == 18 and welch < 10
expected = expected and 0 < milliseconds[0] < 1
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
