#!/usr/bin/env bash
# hyperopt 0.3.0: fmin(points_to_evaluate=...) is left out without a word where trials= is given, and without trials= the
# points come on top of max_evals: of max_evals=3 with two points, five evaluations without Trials, and three with it, none
# of which is one of the points.
# One would guess that the points are evaluated first in both, within the budget, as Optuna's enqueue_trial and Ray Tune's
# points_to_evaluate do.
# It matters where the user's own settings are the first point, to be compared with: whoever keeps a Trials object to see the
# history or to go on later never measures them, and a budget of launches is overdrawn by the others.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet hyperopt==0.3.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import sys

import numpy as np
from hyperopt import Trials, fmin, hp, rand


def evaluated(**more) -> list[float]:
    seen: list[float] = []

    def loss(point: dict[str, float]) -> float:
        seen.append(round(float(point["x"]), 3))
        return point["x"]

    fmin(
        loss,
        {"x": hp.uniform("x", 0, 1)},
        algo=rand.suggest,
        max_evals=3,
        points_to_evaluate=[{"x": 0.125}, {"x": 0.25}],
        rstate=np.random.default_rng(0),
        show_progressbar=False,
        **more,
    )
    return seen


alone, kept = evaluated(), evaluated(trials=Trials())
print("without trials=:", alone)
print("with trials=Trials():", kept)
expected = alone[:2] == [0.125, 0.25] and len(alone) == 5 and len(kept) == 3 and not {0.125, 0.25} & set(kept)
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
