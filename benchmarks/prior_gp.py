"""The simplest search that might be as good as ours: Optuna's Gaussian process over what our cost model gets wrong.

Rules of thumb, races, candidates and the cost model are ours; the process, its kernel, its priors and the fit are those
of Optuna's GPSampler (Optuna 5's own module, which it may change), told the residuals to the cost model's prediction.
It chooses by expected improvement over the best posterior mean and stops where ours stops by that.
"""

import copy
from collections.abc import Mapping, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from replay import Replay

from advisor.protocol.base import Value
from advisor.protocol.knobs.changes import Changes
from advisor.tuning.history.record import Record
from advisor.tuning.search.asking import mix_seed
from advisor.tuning.search.belief import Observation, merge_repeats, normal_below, predict_gains
from advisor.tuning.search.candidate_pool import list_axes, list_candidates, place
from advisor.tuning.search.sampler import Suggestion
from advisor.tuning.search.state import look
from advisor.tuning.space.space import Space

_CENTRES = 2
"""Best strategies that candidates are drawn around."""
_LEAST_SCALE = 0.01
"""Standard deviation that residuals are divided by at least, in ln(throughput)."""


class _Posterior:
    """What Optuna's process says of strategies after the observations."""

    def __init__(self, space: Space, observations: Sequence[Observation], model: Any) -> None:
        import torch
        from optuna._gp import gp, prior

        self._space, self._model, self._torch = space, model, torch
        scored = [s for s in merge_repeats(observations) if s.changes]
        self.measured = [Changes(), *(s.changes for s in scored)]
        residuals = np.array([0.0, *(s.score for s in scored)]) - predict_gains(space, model, self.measured)
        self._scale = max(_LEAST_SCALE, float(residuals.std()))
        self._gp = gp.fit_kernel_params(
            X=self._locate(self.measured), Y=residuals / self._scale, log_prior=prior.default_log_prior,
            is_categorical=np.array([not axis.ordered for axis in list_axes(space)]),
            minimum_noise=prior.DEFAULT_MINIMUM_NOISE_VAR, deterministic_objective=False,
        )  # fmt: skip

    def _locate(self, strategies: Sequence[Mapping[str, Value]]) -> Any:
        places = place(self._space, strategies)
        columns = [np.array(axis.coordinates)[places[:, j]] for j, axis in enumerate(list_axes(self._space))]
        return np.stack(columns, axis=1).astype(np.float64)

    def predict(self, strategies: Sequence[Mapping[str, Value]]) -> tuple[Any, Any]:
        """Return mean and standard deviation of ln(throughput / baseline's)."""
        with self._torch.no_grad():
            mean, variance = self._gp.posterior(self._torch.from_numpy(self._locate(strategies)))
        trend = predict_gains(self._space, self._model, strategies)
        return trend + self._scale * mean.numpy(), self._scale * np.sqrt(variance.numpy())

    def believe(self, strategies: Sequence[Mapping[str, Value]]) -> "_Posterior":
        """Return the posterior as if the strategies had brought what is predicted of them."""
        told = copy.copy(self)
        told._gp = copy.copy(self._gp)
        at = self._torch.from_numpy(self._locate(strategies))
        with self._torch.no_grad():
            told._gp.append_running_data(at, self._gp.posterior(at)[0])
        return told


def suggest_by_gp(
    space: Space, observations: Sequence[Observation], barred: Sequence[Mapping[str, Value]], seed: int,
    number: int, count: int = 1, model: Any = None, **_: Any,
) -> list[Suggestion]:  # fmt: skip
    """Stand in for `advisor.tuning.search.asking.suggest`."""
    posterior = _Posterior(space, observations, model)
    incumbent = float(posterior.predict(posterior.measured)[0].max())
    ranked = sorted(merge_repeats(observations), key=lambda s: -s.score)
    never = {*map(Changes, barred), *(o.changes for o in observations)}
    pool = list_candidates(space, never, [s.changes for s in ranked[:_CENTRES]], mix_seed(seed, number))
    found: list[Suggestion] = []
    while pool and len(found) < count:
        raced = posterior.believe([s.changes for s in found]) if found else posterior
        mean, sd = raced.predict(pool)
        z = (mean - incumbent) / np.maximum(sd, 1e-9)
        density = np.exp(-0.5 * z**2) / np.sqrt(2.0 * np.pi)
        improvement = sd * (z * normal_below(z) + density)
        best = int(np.argmax(improvement))
        chosen = pool.pop(best)
        found.append(
            Suggestion(chosen, "Optuna's process.", float(improvement[best]), False, float(mean[best]))
        )
    return found


class PriorGpReplay(Replay):
    """A job whose search is this one."""

    def search(self, arms: int) -> "PriorGpReplay":
        """Carry the job on with the sampler replaced."""
        with patch("advisor.tuning.search.search.suggest", suggest_by_gp):
            super().search(arms)
        return self

    def recommend(self) -> Mapping[str, Value]:
        """Return the measured strategy of the best posterior mean."""
        state = look(Record(self.job, self.history, self.now))
        if state is None:
            return {}
        posterior = _Posterior(state.focused, state.observations, state.model)
        return posterior.measured[int(np.argmax(posterior.predict(posterior.measured)[0]))]
