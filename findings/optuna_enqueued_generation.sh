#!/usr/bin/env bash
# optuna 5.0.0: a trial that was enqueued with all of its parameters never enters a generation of NSGAIISampler, because the
# sampler is not asked for such a trial: twelve enqueued trials with a population of four leave "generation" unset, and the
# thirteenth, which is asked for freely, is in generation 0. Reading `trial.relative_params` of each puts them into 0, 1 and 2.
# One would guess that warm-started trials count towards the population, as any finished trial does for TPE and GP.
# It matters where a study is rebuilt from a history by enqueue_trial, ask and tell: a genetic search never leaves its
# random first generation, and nothing says so.
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


def generations(read: bool) -> list[int | None]:
    study = optuna.create_study(sampler=optuna.samplers.NSGAIISampler(population_size=4, seed=1))
    space = {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}
    for number in range(12):
        study.enqueue_trial({"x": number / 12})
        trial = study.ask(space)
        if read:
            trial.relative_params
        study.tell(trial, trial.params["x"])
    study.tell(study.ask(space), 0.5)
    return [trial.system_attrs.get("NSGAIISampler:generation") for trial in study.trials]


plain, read = generations(False), generations(True)
print("enqueued, asked, told:          ", plain)
print("and relative_params of each read:", read)
expected = plain == [None] * 12 + [0] and sorted(set(read)) == [0, 1, 2, 3]
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
