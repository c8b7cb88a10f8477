"""Libraries that search, behind the interface of peer_model.py: Ray Tune's searchers, SMAC3, HEBO, FLAML, Ax, more."""

import logging
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from peer_model import Axis, Peer, Places


class RaySearcher(Peer):
    """A searcher of Ray Tune, without Ray's cluster around it."""

    def __init__(
        self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = (), kind: str = "bohb"
    ) -> None:
        super().__init__(space, seed, first)
        from ray import tune

        domains = {
            knob: tune.randint(0, axis.count) if axis.ordered else tune.choice(list(range(axis.count)))
            for knob, axis in space.items()
        }
        self.searcher = _ray_searcher(kind, seed, self.first)
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

    def tell(self, value: float, _error: float) -> None:
        """Tell the searcher that the trial is complete."""
        result = {"score": value, "training_iteration": 1, "hyperband_info": {"budget": 1.0}}
        self.searcher.on_trial_result(str(self.number), result)
        self.searcher.on_trial_complete(str(self.number), result)


def _ray_searcher(kind: str, seed: int, first: Sequence[Places]) -> Any:
    logging.getLogger("hyperopt").setLevel(logging.ERROR)
    if kind == "hyperopt":
        from ray.tune.search.hyperopt import HyperOptSearch

        return HyperOptSearch(
            metric="score", mode="max", random_state_seed=seed, points_to_evaluate=list(first) or None
        )
    from ray.tune.search.bohb import TuneBOHB

    return TuneBOHB(metric="score", mode="max", seed=seed)


class Smac(Peer):
    """SMAC3's facade for costly functions: random forest, expected improvement; Sobol points first, not the default."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
        from ConfigSpace import Categorical, Configuration, ConfigurationSpace, Integer
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
            deterministic=False,
            n_trials=20,
            seed=seed,
            output_directory=tempfile.mkdtemp(prefix="smac-"),
        )
        design = {
            "additional_configs": [Configuration(configuration, values=places) for places in self.first],
            "n_configs": 0 if self.first else 5,  # it would measure them before those it is given
        }
        self.facade = HyperparameterOptimizationFacade(
            scenario, _not_called, overwrite=True, logging_level=40,
            initial_design=HyperparameterOptimizationFacade.get_initial_design(scenario, **design),
        )  # fmt: skip
        self.info: Any = None

    def ask(self) -> Places:
        """Return the facade's suggestion."""
        self.info = self.facade.ask()
        return {knob: int(self.info.config[knob]) for knob in self.space}

    def tell(self, value: float, _error: float) -> None:
        """Tell it the cost."""
        from smac.runhistory.dataclasses import TrialValue

        self.facade.tell(self.info, TrialValue(cost=-value))


def _not_called(config: Any, seed: int = 0) -> float:
    raise RuntimeError(f"SMAC calls its target though it is only asked and told ({config}, {seed})")


class Hebo(Peer):
    """HEBO, called directly: what Ray Tune's HEBOSearch does."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
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
        import pandas

        if self.first:
            self.row = pandas.DataFrame([self.first.pop(0)])
        else:
            self.row = self.optimizer.suggest(n_suggestions=1)
        return {knob: int(self.row[knob].iloc[0]) for knob in self.space}

    def tell(self, value: float, _error: float) -> None:
        """Tell it the cost."""
        self.optimizer.observe(self.row, self.number_of.array([[-value]]))


class BlendSearch(Peer):
    """FLAML's BlendSearch: local search from the script as it stands, blended with a global one."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
        from flaml import BlendSearch as Search
        from flaml import tune

        logging.getLogger("flaml").setLevel(logging.ERROR)
        self.searcher = Search(
            metric="score", mode="max", seed=seed, low_cost_partial_config={},
            points_to_evaluate=[self.baseline(), *self.first],
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

    def tell(self, value: float, _error: float) -> None:
        """Tell it that the trial is complete."""
        config = {f"config/{knob}": place for knob, place in self.asked.items()}
        self.searcher.on_trial_complete(str(self.number), {"score": value, "time_total_s": 1.0, **config})


class AxClient(Peer):
    """Ax's client with its own choice of steps; the script as it stands is its baseline, and errors are told."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
        logging.disable(logging.ERROR)
        warnings.filterwarnings("ignore")
        import torch
        from ax.api.client import Client
        from ax.api.configs import ChoiceParameterConfig, RangeParameterConfig

        # Its acquisition function is optimised with torch's global generator.
        torch.manual_seed(seed)
        self.client = Client(random_seed=seed)
        self.client.configure_experiment(
            parameters=[
                RangeParameterConfig(name=knob, parameter_type="int", bounds=(0, axis.count - 1))
                if axis.ordered and axis.count > 1
                else ChoiceParameterConfig(
                    name=knob, parameter_type="int", values=list(range(axis.count)), is_ordered=False
                )
                for knob, axis in space.items()
            ]
        )
        self.client.configure_optimization(objective="score")
        status_quo = self.client.attach_baseline(parameters=self.baseline())
        self.client.complete_trial(status_quo, raw_data={"score": (0.0, 0.002)})
        self.index = 0

    def ask(self) -> Places:
        """Return its next trial."""
        if self.first:
            places = self.first.pop(0)
            self.index = self.client.attach_trial(parameters=places)
            return places
        ((self.index, found),) = self.client.get_next_trials(max_trials=1).items()
        return {knob: int(found[knob]) for knob in self.space}

    def tell(self, value: float, error: float) -> None:
        """Complete the trial with value and error."""
        self.client.complete_trial(self.index, raw_data={"score": (value, error)})


class Nevergrad(Peer):
    """Nevergrad's NGOpt, which chooses among its optimisers by the space and the budget."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
        warnings.filterwarnings("ignore")
        import nevergrad as ng

        domain = ng.p.Dict(
            **{
                knob: (ng.p.TransitionChoice if axis.ordered else ng.p.Choice)(list(range(axis.count)))
                for knob, axis in space.items()
            }
        )
        domain.random_state.seed(seed)
        self.optimizer = ng.optimizers.NGOpt(parametrization=domain, budget=20)
        for places in reversed(first):  # what was suggested last is asked first
            self.optimizer.suggest(places)
        self.candidate: Any = None

    def ask(self) -> Places:
        """Return its suggestion."""
        self.candidate = self.optimizer.ask()
        return {knob: int(self.candidate.value[knob]) for knob in self.space}

    def tell(self, value: float, _error: float) -> None:
        """Tell it the loss."""
        self.optimizer.tell(self.candidate, -value)


class Vizier(Peer):
    """Vizier's default (GP_UCB_PE), called directly as its service calls it."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
        import jax
        from vizier import algorithms as core
        from vizier._src.algorithms.designers.gp_ucb_pe import VizierGPUCBPEBandit
        from vizier.service import pyvizier

        self.core, self.types = core, pyvizier
        problem = pyvizier.ProblemStatement()
        for knob, axis in space.items():
            if axis.ordered and axis.count > 1:
                problem.search_space.root.add_int_param(knob, 0, axis.count - 1)
            else:
                problem.search_space.root.add_categorical_param(knob, [str(i) for i in range(axis.count)])
        problem.metric_information.append(
            pyvizier.MetricInformation("score", goal=pyvizier.ObjectiveMetricGoal.MAXIMIZE)
        )
        jax.config.update("jax_enable_x64", True)
        self.designer = VizierGPUCBPEBandit(problem, rng=jax.random.PRNGKey(seed))
        self.asked: Places = {}
        self.number = 0

    def ask(self) -> Places:
        """Return its suggestion."""
        if self.first:
            self.asked = self.first.pop(0)
        else:
            (found,) = self.designer.suggest(1)
            self.asked = {knob: int(found.parameters.get_value(knob)) for knob in self.space}
        return self.asked

    def tell(self, value: float, _error: float) -> None:
        """Tell it the trial."""
        self.number += 1
        parameters = {
            knob: place if self.space[knob].ordered and self.space[knob].count > 1 else str(place)
            for knob, place in self.asked.items()
        }
        trial = self.types.Trial(id=self.number, parameters=parameters)
        trial.complete(self.types.Measurement({"score": value}))
        self.designer.update(self.core.CompletedTrials([trial]), self.core.ActiveTrials())
