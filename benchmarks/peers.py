"""Other ways to search: those that need nothing but Optuna, and the list of all; peer_libraries.py and
peer_tuners.py have the others.

What a peer needs is imported when it is made: requirements-peers.txt has it. A name that ends in `+rules` is the same
peer, given our rules of thumb as the first points that it measures, by its own means for that.
"""

import functools
import math
import os
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from peer_libraries import AxClient, BlendSearch, Hebo, Nevergrad, RaySearcher, Smac, Vizier
from peer_model import Axis, Peer, Places
from peer_tuners import DeepSpeedTuner, HorovodTuner

_LEAST_STARTUP = 4
"""Random strategies of a sampler that was given first points; its own number else."""


class RandomSearch(Peer):
    """Uniform over the grid."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
        self.dice = random.Random(seed)

    def ask(self) -> Places:
        """Return any strategy."""
        return {knob: self.dice.randrange(axis.count) for knob, axis in self.space.items()}

    def tell(self, value: float, _error: float) -> None:
        """Nothing is learnt."""


class RandomRepeats(RandomSearch):
    """Uniform, and every third race one more of the best by its mean: noise is met by measuring again."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
        self.told: dict[tuple[int, ...], list[float]] = {}
        self.asked: Places = {}
        self.number = 0

    def ask(self) -> Places:
        """Return a new strategy, or the best one again."""
        self.number += 1
        if self.number % 3 == 0 and self.told:
            best = max(self.told, key=lambda key: fmean(self.told[key]))
            self.asked = dict(zip(self.space, best, strict=True))
        else:
            self.asked = super().ask()
        return self.asked

    def tell(self, value: float, _error: float) -> None:
        """Keep it."""
        self.told.setdefault(tuple(self.asked[knob] for knob in self.space), []).append(value)


class CoordinateDescent(Peer):
    """What people do by hand: from the script as it stands, one knob after the other, each time the best value kept."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
        self.here = self.baseline()
        self.asked = dict(self.here)
        self.best: float | None = None
        self.moves = self._walk()

    def _walk(self) -> Iterator[Places]:
        yield dict(self.here)
        while True:
            for knob, axis in self.space.items():
                start = self.here[knob]
                for place in sorted(range(axis.count), key=lambda p: abs(p - start)):
                    if place != start:
                        yield {**self.here, knob: place}

    def ask(self) -> Places:
        """Return the next value of the knob in turn."""
        self.asked = next(self.moves)
        return self.asked

    def tell(self, value: float, _error: float) -> None:
        """Move where it was better."""
        if self.best is None or value > self.best:
            self.best, self.here = value, dict(self.asked)


class CoarseGrid(Peer):
    """A grid of few values of each knob, as DeepSpeed's autotuner lays it, but in random order."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
        self.values = [sorted({0, axis.count // 2, axis.count - 1}) for axis in space.values()]
        self.dice = random.Random(seed)
        self.seen: set[tuple[int, ...]] = set()

    def ask(self) -> Places:
        """Return a point of the grid that was not asked for; any one, once there is none."""
        if len(self.seen) >= math.prod(map(len, self.values)):
            self.seen.clear()
        point = tuple(self.dice.choice(values) for values in self.values)
        while point in self.seen:
            point = tuple(self.dice.choice(values) for values in self.values)
        self.seen.add(point)
        return dict(zip(self.space, point, strict=True))

    def tell(self, value: float, _error: float) -> None:
        """Nothing is learnt."""


class OptunaStudy(Peer):
    """Optuna, as its tutorial has it: a study with a sampler, ask and tell."""

    def __init__(
        self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = (), sampler: str = "TPESampler"
    ) -> None:
        super().__init__(space, seed, first)
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", module="optuna")
        hub = sampler == "AutoSampler"
        kind = _load_auto_sampler() if hub else getattr(optuna.samplers, sampler)
        startup = {"n_startup_trials": max(_LEAST_STARTUP, len(first))} if first and not hub else {}
        self.study = optuna.create_study(direction="maximize", sampler=kind(seed=seed, **startup))
        for places in first:
            self.study.enqueue_trial(places)
        self.trial: Any = None

    def ask(self) -> Places:
        """Return the sampler's suggestion."""
        self.trial = self.study.ask()
        return {
            knob: self.trial.suggest_int(knob, 0, axis.count - 1)
            if axis.ordered
            else self.trial.suggest_categorical(knob, list(range(axis.count)))
            for knob, axis in self.space.items()
        }

    def tell(self, value: float, _error: float) -> None:
        """Tell the study; its samplers take no error."""
        self.study.tell(self.trial, value)


def _load_auto_sampler() -> Any:
    """OptunaHub's AutoSampler, downloaded from GitHub; from a checkout of its registry where the variable names one."""
    import optunahub

    registry = os.environ.get("OPTUNAHUB_REGISTRY")
    name = "samplers/auto_sampler"
    found = (
        optunahub.load_local_module(name, registry_root=registry) if registry else optunahub.load_module(name)
    )
    return found.AutoSampler


Make = Callable[[Mapping[str, Axis], int, Sequence[Places]], Peer]
_OPTUNA = {
    "optuna-tpe": ("Optuna's default (TPE)", "TPESampler"),
    "optuna-gp": ("Optuna's GPSampler", "GPSampler"),
    "optuna-cmaes": ("Optuna's CmaEsSampler", "CmaEsSampler"),
    "optuna-auto": ("OptunaHub's AutoSampler", "AutoSampler"),
}
_PLAIN: Mapping[str, tuple[str, Make]] = {
    "random": ("random search", RandomSearch),
    "random-repeats": ("random search with repeats of the best", RandomRepeats),
    "coordinate": ("coordinate descent from the default", CoordinateDescent),
    "grid": ("a coarse grid, as DeepSpeed's, in random order", CoarseGrid),
    "deepspeed": ("the model-based procedure of DeepSpeed's autotuner, over all knobs", DeepSpeedTuner),
    "horovod": ("the procedure of Horovod's autotuner, over all knobs", HorovodTuner),
    "ray-bohb": ("Ray Tune with TuneBOHB", functools.partial(RaySearcher, kind="bohb")),
}
_STARTED: Mapping[str, tuple[str, Make]] = {
    **{
        name: (words, functools.partial(OptunaStudy, sampler=kind)) for name, (words, kind) in _OPTUNA.items()
    },
    "ray-hyperopt": ("Ray Tune with HyperOptSearch", functools.partial(RaySearcher, kind="hyperopt")),
    "hebo": ("HEBO (what Ray Tune's HEBOSearch calls)", Hebo),
    "blendsearch": ("FLAML's BlendSearch", BlendSearch),
    "smac": ("SMAC3 (random forest), told that it is noisy", Smac),
    "ax": ("Ax, with its status-quo arm and the errors", AxClient),
    "nevergrad": ("Nevergrad's NGOpt", Nevergrad),
    "vizier": ("Vizier's default (GP_UCB_PE)", Vizier),
}
"""Those that have a way to be given first points."""
PEERS: Mapping[str, tuple[str, Make]] = {
    **_PLAIN,
    **_STARTED,
    **{f"{name}+rules": (f"{words}, after our rules", make) for name, (words, make) in _STARTED.items()},
}
"""Name -> what it is in words, and how it is made. Ask and tell alternate strictly."""
