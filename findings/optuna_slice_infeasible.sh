#!/usr/bin/env bash
# optuna 5.0.0 with plotly 7.1.0, seen on 2026-11-28.
# plot_slice leaves every infeasible trial (one that breaks a constraint) out where the parameter is categorical, and
# draws it in grey where it is a number: for {False, True} only [('Feasible Trial', ['False'])] comes back.
# One would guess that the same trials are drawn for both, as the documents say nothing of it.
# Why it matters: of settings such as fp16_allreduce=True, which change more than a user allows, all trials are
# infeasible, and the picture looks as if the value had never been tried.
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install --quiet optuna==5.0.0 plotly==7.1.0
"$home/venv/bin/python" - <<'PYTHON'
import sys

import optuna
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import create_trial

drawn = {}
for kind, values in ((IntDistribution(0, 1), (0, 1)), (CategoricalDistribution((False, True)), (False, True))):
    study = optuna.create_study()
    for value, broken_by in zip(values, (-1.0, 1.0)):
        study.add_trial(
            create_trial(value=1.0, params={"x": value}, distributions={"x": kind}, constraints={"c": broken_by})
        )
    found = optuna.visualization.plot_slice(study).data
    drawn[type(kind).__name__] = sum(len(trace.x or ()) for trace in found)
    print(type(kind).__name__, [(trace.name, list(trace.x or ())) for trace in found])
sys.exit(drawn != {"IntDistribution": 2, "CategoricalDistribution": 1})
PYTHON
