"""Other ways to search, behind one small interface: each asks for a strategy and is told what it measured.

A strategy is a place on the axis of each knob. Ordered knobs are integers (on a surface's own, log-like spacing, which
helps the peers), others are categories. What a peer needs is imported when it is made: requirements-peers.txt has it.
"""

import logging
import math
import random
import tempfile
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Places = dict[str, int]
PENALTY = 0.2
"""How far below the worst measured value a failed strategy is told, in units of ln(throughput)."""


@dataclass(frozen=True)
class Axis:
    """One knob as a peer sees it."""

    count: int
    ordered: bool
    baseline: int
    """Place of the script's own value."""


class Peer(ABC):
    """One search, from its first question on."""

    def __init__(self, space: Mapping[str, Axis], seed: int) -> None:
        self.space = space
        self.seed = seed

    @abstractmethod
    def ask(self) -> Places:
        """Return the next strategy to measure."""

    @abstractmethod
    def tell(self, value: float) -> None:
        """Take note of what the strategy just asked about measured: ln(throughput), or the penalty where it failed."""

    def _baseline(self) -> Places:
        return {knob: axis.baseline for knob, axis in self.space.items()}


class RandomSearch(Peer):
    """Uniform over the grid."""

    def __init__(self, space: Mapping[str, Axis], seed: int) -> None:
        super().__init__(space, seed)
        self.dice = random.Random(seed)

    def ask(self) -> Places:
        """Return any strategy."""
        return {knob: self.dice.randrange(axis.count) for knob, axis in self.space.items()}

    def tell(self, value: float) -> None:
        """Nothing is learnt."""


class CoordinateDescent(Peer):
    """What people do by hand: from the script as it stands, one knob after the other, each time the best value kept."""

    def __init__(self, space: Mapping[str, Axis], seed: int) -> None:
        super().__init__(space, seed)
        self.here = self._baseline()
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

    def tell(self, value: float) -> None:
        """Move where it was better."""
        if self.best is None or value > self.best:
            self.best, self.here = value, dict(self.asked)


class CoarseGrid(Peer):
    """A grid of few values of each knob, as DeepSpeed's autotuner lays it, but in random order."""

    def __init__(self, space: Mapping[str, Axis], seed: int) -> None:
        super().__init__(space, seed)
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

    def tell(self, value: float) -> None:
        """Nothing is learnt."""


class OptunaStudy(Peer):
    """Optuna, as its tutorial has it: a study with a sampler, ask and tell."""

    def __init__(self, space: Mapping[str, Axis], seed: int, sampler: str) -> None:
        super().__init__(space, seed)
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.filterwarnings("ignore", module="optuna")
        self.study = optuna.create_study(
            direction="maximize", sampler=getattr(optuna.samplers, sampler)(seed=seed)
        )
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

    def tell(self, value: float) -> None:
        """Tell the study."""
        self.study.tell(self.trial, value)


class RaySearcher(Peer):
    """A searcher of Ray Tune, without Ray's cluster around it."""

    def __init__(self, space: Mapping[str, Axis], seed: int, kind: str) -> None:
        super().__init__(space, seed)
        from ray import tune

        domains = {
            knob: tune.randint(0, axis.count) if axis.ordered else tune.choice(list(range(axis.count)))
            for knob, axis in space.items()
        }
        self.searcher = _ray_searcher(kind, seed)
        if not self.searcher.set_search_properties("score", "max", domains):
            raise RuntimeError(f"Ray's {kind} does not take this space")
        self.number = 0

    def ask(self) -> Places:
        """Return the searcher's suggestion."""
        self.number += 1
        config = self.searcher.suggest(str(self.number))
        if not isinstance(config, dict):
            raise RuntimeError(f"Ray's searcher suggests nothing: {config}")
        return {knob: int(config[knob]) for knob in self.space}

    def tell(self, value: float) -> None:
        """Tell the searcher that the trial is complete."""
        result = {"score": value, "training_iteration": 1, "hyperband_info": {"budget": 1.0}}
        self.searcher.on_trial_result(str(self.number), result)
        self.searcher.on_trial_complete(str(self.number), result)


def _ray_searcher(kind: str, seed: int) -> Any:
    logging.getLogger("hyperopt").setLevel(logging.ERROR)
    if kind == "hyperopt":
        from ray.tune.search.hyperopt import HyperOptSearch

        return HyperOptSearch(metric="score", mode="max", random_state_seed=seed)
    from ray.tune.search.bohb import TuneBOHB

    return TuneBOHB(metric="score", mode="max", seed=seed)


class RayDefault(Peer):
    """Ray Tune without a searcher: variants of the space drawn at random."""

    def __init__(self, space: Mapping[str, Axis], seed: int) -> None:
        super().__init__(space, seed)
        import numpy
        from ray import tune
        from ray.tune.search.variant_generator import generate_variants

        self.random_state = numpy.random.default_rng(seed)
        self.draw: Callable[..., Any] = generate_variants
        self.domains = {knob: tune.randint(0, axis.count) for knob, axis in space.items()}

    def ask(self) -> Places:
        """Return the next variant."""
        _, config = next(self.draw(dict(self.domains), random_state=self.random_state))
        return {knob: int(config[knob]) for knob in self.space}

    def tell(self, value: float) -> None:
        """Nothing is learnt."""


class Smac(Peer):
    """SMAC3's facade for costly functions: random forest, expected improvement, the default tried first."""

    def __init__(self, space: Mapping[str, Axis], seed: int) -> None:
        super().__init__(space, seed)
        from ConfigSpace import Categorical, ConfigurationSpace, Integer
        from smac import HyperparameterOptimizationFacade, Scenario

        warnings.filterwarnings("ignore")
        configuration = ConfigurationSpace(seed=seed)
        for knob, axis in space.items():
            if axis.ordered:
                configuration.add(Integer(knob, (0, axis.count - 1), default=axis.baseline))
            else:
                configuration.add(Categorical(knob, list(range(axis.count)), default=axis.baseline))
        scenario = Scenario(
            configuration,
            deterministic=True,
            n_trials=40,
            seed=seed,
            output_directory=tempfile.mkdtemp(prefix="smac-"),
        )
        self.facade = HyperparameterOptimizationFacade(
            scenario, _not_called, overwrite=True, logging_level=40
        )
        self.info: Any = None

    def ask(self) -> Places:
        """Return the facade's suggestion."""
        self.info = self.facade.ask()
        return {knob: int(self.info.config[knob]) for knob in self.space}

    def tell(self, value: float) -> None:
        """Tell it the cost."""
        from smac.runhistory.dataclasses import TrialValue

        self.facade.tell(self.info, TrialValue(cost=-value))


def _not_called(config: Any, seed: int = 0) -> float:
    raise RuntimeError(f"SMAC calls its target though it is only asked and told ({config}, {seed})")


class Hebo(Peer):
    """HEBO, called directly: what Ray Tune's HEBOSearch does."""

    def __init__(self, space: Mapping[str, Axis], seed: int) -> None:
        super().__init__(space, seed)
        import numpy
        import torch
        from hebo.design_space.design_space import DesignSpace
        from hebo.optimizers.hebo import HEBO

        warnings.filterwarnings("ignore")
        # HEBO draws from the global generators.
        numpy.random.seed(seed)
        torch.manual_seed(seed)
        self.number_of = numpy
        self.optimizer = HEBO(
            DesignSpace().parse(
                [
                    {"name": knob, "type": "int", "lb": 0, "ub": axis.count - 1}
                    if axis.ordered
                    else {"name": knob, "type": "cat", "categories": list(range(axis.count))}
                    for knob, axis in space.items()
                ]
            ),
            scramble_seed=seed,
        )
        self.row: Any = None

    def ask(self) -> Places:
        """Return its suggestion."""
        self.row = self.optimizer.suggest(n_suggestions=1)
        return {knob: int(self.row[knob].iloc[0]) for knob in self.space}

    def tell(self, value: float) -> None:
        """Tell it the cost."""
        self.optimizer.observe(self.row, self.number_of.array([[-value]]))


class BlendSearch(Peer):
    """FLAML's BlendSearch: local search from the script as it stands, blended with a global one."""

    def __init__(self, space: Mapping[str, Axis], seed: int) -> None:
        super().__init__(space, seed)
        from flaml import BlendSearch as Search
        from flaml import tune

        logging.getLogger("flaml").setLevel(logging.ERROR)
        self.searcher = Search(
            metric="score", mode="max", seed=seed, low_cost_partial_config={}, points_to_evaluate=[self._baseline()],
            space={
                knob: tune.randint(0, axis.count) if axis.ordered else tune.choice(list(range(axis.count)))
                for knob, axis in space.items()
            },
        )  # fmt: skip
        self.number = 0
        self.asked: Places = {}

    def ask(self) -> Places:
        """Return its suggestion; it waits now and then for what it is told already."""
        for _ in range(20):
            self.number += 1
            if (config := self.searcher.suggest(str(self.number))) is not None:
                self.asked = {knob: int(config[knob]) for knob in self.space}
                return self.asked
        raise RuntimeError("BlendSearch suggests nothing")

    def tell(self, value: float) -> None:
        """Tell it that the trial is complete."""
        config = {f"config/{knob}": place for knob, place in self.asked.items()}
        self.searcher.on_trial_complete(str(self.number), {"score": value, "time_total_s": 1.0, **config})


PEERS: Mapping[str, tuple[str, Callable[[Mapping[str, Axis], int], Peer]]] = {
    "random": ("random search", RandomSearch),
    "optuna-tpe": ("Optuna's default (TPE)", lambda space, seed: OptunaStudy(space, seed, "TPESampler")),
    "optuna-gp": ("Optuna's GPSampler", lambda space, seed: OptunaStudy(space, seed, "GPSampler")),
    "ray-default": ("Ray Tune's default (random variants)", RayDefault),
    "ray-hyperopt": (
        "Ray Tune with HyperOptSearch",
        lambda space, seed: RaySearcher(space, seed, "hyperopt"),
    ),
    "ray-bohb": ("Ray Tune with TuneBOHB", lambda space, seed: RaySearcher(space, seed, "bohb")),
    "hebo": ("HEBO (what Ray Tune's HEBOSearch calls)", Hebo),
    "blendsearch": ("FLAML's BlendSearch", BlendSearch),
    "smac": ("SMAC3 (random forest)", Smac),
    "coordinate": ("coordinate descent from the default", CoordinateDescent),
    "grid": ("a coarse grid, as DeepSpeed's, in random order", CoarseGrid),
}
"""Name -> what it is in words, and how it is made. Ask and tell alternate strictly."""
