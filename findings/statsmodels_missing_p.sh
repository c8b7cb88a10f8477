#!/usr/bin/env bash
# statsmodels 0.15.0: multipletests() with one p-value missing (NaN). "fdr_bh" and "fdr_by" give NaN as EVERY corrected p-value,
# while the rejections beside them are those without the missing one: (True, False, True) with (nan, nan, nan). "holm" and
# the default, "hs" (Holm and Sidak), REJECT the hypothesis that has no p-value, where the others are rejected.
# One would guess that both answers agree, and that NaN stays in its place, unrejected, as with "bonferroni", or raises.
# It matters to gates that test several metrics at once: a metric that is constant has no p-value (t-test: 0/0). From then on
# "corrected < 0.05" passes every regression under fdr_bh, and "reject" under holm reports one in the constant metric.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet statsmodels==0.15.0 scipy==1.17.1 numpy==2.4.6 pandas==3.1.1
"$folder/venv/bin/python" - 2>/dev/null <<'PY'
import sys

import numpy as np
from scipy import stats
from statsmodels.stats.multitest import multipletests

rng = np.random.default_rng(0)
before, after = rng.normal(100, 1, 20), rng.normal(103, 1, 20)
same = np.full(20, 7.0)
p = [stats.ttest_ind(a, b, equal_var=False).pvalue for a, b in ((before, after), (same, same), (before, before + 1.2))]
print("p-values:", [f"{value:.2g}" for value in p])
answers = {}
for method in ("fdr_bh", "fdr_by", "holm", "hs", "bonferroni"):
    reject, corrected, *_ = multipletests(p, method=method)
    answers[method] = reject.tolist(), int(np.isnan(corrected).sum())
    print(f"{method}: reject {reject.tolist()}, corrected {[f'{value:.2g}' for value in corrected]}")
expected = answers["fdr_bh"] == answers["fdr_by"] == ([True, False, True], 3)
expected = expected and answers["holm"] == answers["hs"] == ([True, True, True], 1)
expected = expected and answers["bonferroni"] == ([True, False, True], 1)
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
