#!/usr/bin/env bash
# optuna 5.0.0: enqueue_trial(params, skip_if_exists=True) also skips parameters whose only trial FAILED: nothing is enqueued
# again, and the study holds [FAIL] and no other trial with them. Nothing is said (the log has one line at level INFO).
# One would guess that a failed trial does not count as existing, as samplers, best_trial and RetryFailedTrialCallback hold it.
# It matters where a study is restarted with the user's own settings enqueued first, which is what skip_if_exists is for: if
# they failed once (a node went away, a port was taken), they are never measured, and every comparison lacks its baseline.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet optuna==5.0.0
"$folder/venv/bin/python" - <<'PY'
import sys

import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
seen = {}
for end in (optuna.trial.TrialState.FAIL, optuna.trial.TrialState.PRUNED):
    study = optuna.create_study()
    for _ in range(2):
        study.enqueue_trial({"x": 1}, skip_if_exists=True)
        if study.get_trials(states=[optuna.trial.TrialState.WAITING]):
            trial = study.ask()
            trial.suggest_int("x", 0, 3)
            study.tell(trial, state=end)
    seen[end.name] = [(trial.state.name, trial.params) for trial in study.trials]
    print(f"enqueued twice, {end.name} in between: {seen[end.name]}")
expected = all(len(trials) == 1 for trials in seen.values())
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
