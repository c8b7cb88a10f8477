#!/usr/bin/env bash
# hyperopt 0.3.0 and nevergrad 1.0.12: an integer drawn at random has its smallest and its largest value half as often as
# those between: hp.uniformint(0, 4) gives 72, 140, 170, 148, 70 of 600, and Scalar(lower=0, upper=4).set_integer_casting()
# under RandomSearch alike, because both round a real number of [0, 4]. Optuna's suggest_int(0, 4) gives each a fifth.
# One would guess that "uniform" integers are uniform (hyperopt's own hp.randint is), the more as both ends are included.
# It matters because a tuner's ends are its meaning: 0 worker processes, no accumulation, the largest batch that fits. Of
# three values {0, 1, 2} one half of a random start goes to the middle, and comparisons of searches by "the same random
# start" differ by library.
# 2026-11-28
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet hyperopt==0.3.0 nevergrad==1.0.12 optuna==5.0.0 numpy==2.4.6
"$folder/venv/bin/python" - <<'PY'
import collections
import sys

import nevergrad
import numpy as np
import optuna
from hyperopt import hp
from hyperopt.pyll import stochastic

DRAWS = 2000
optuna.logging.set_verbosity(optuna.logging.ERROR)
rng = np.random.default_rng(0)
drawn: dict[str, list[int]] = {}
for name, space in (("hp.uniformint", hp.uniformint("n", 0, 4)), ("hp.randint", hp.randint("n", 0, 5))):
    drawn[name] = [int(stochastic.sample(space, rng=rng)) for _ in range(DRAWS)]
scalar = nevergrad.p.Scalar(lower=0, upper=4).set_integer_casting()
scalar.random_state.seed(0)
search = nevergrad.optimizers.RandomSearch(scalar, budget=DRAWS)
drawn["nevergrad's integer Scalar"] = [int(search.ask().value) for _ in range(DRAWS)]
study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
drawn["optuna's suggest_int"] = [study.ask().suggest_int("n", 0, 4) for _ in range(DRAWS)]
ends = {}
for name, values in drawn.items():
    count = collections.Counter(values)
    ends[name] = (count[0] + count[4]) / DRAWS
    print(f"{name}: {[count[value] for value in range(5)]}, share of both ends {ends[name]:.2f}")
halved = ["hp.uniformint", "nevergrad's integer Scalar"]
expected = all((share < 0.32) == (name in halved) for name, share in ends.items())
print("as in 2026-11" if expected else "CHANGED")
sys.exit(not expected)
PY
