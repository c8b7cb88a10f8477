"""What training frameworks tune by themselves, laid over all knobs of a surface: procedures as documented, not code.

DeepSpeed's and Horovod's tuners are bound to their own knobs and runtimes. What is compared is how they search: each
keeps its own settings, unless its docstring says otherwise.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence

from peer_model import Axis, Peer, Places


class DeepSpeedTuner(Peer):
    """The model-based tuner of DeepSpeed's autotuning: boosted trees rank what is left of a coarse grid.

    It begins with the grid's first point and a random one; one choice of five is random. What it would end after five
    trials without improvement goes on here, which can only help it.
    """

    most = 20_000
    """Points of the grid that are ranked; of a larger grid so many random ones."""

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
        import numpy
        import xgboost

        self.numbers, self.trees = numpy, xgboost
        self.dice = random.Random(seed)
        values = [sorted({0, axis.count // 2, axis.count - 1}) for axis in space.values()]
        if math.prod(map(len, values)) <= self.most:
            self.left = list(itertools.product(*values))
        else:
            drawn = {tuple(map(self.dice.choice, values)) for _ in range(self.most)}
            origin = tuple(choices[0] for choices in values)
            self.left = [origin, *sorted(drawn - {origin})]
        self.points: list[tuple[int, ...]] = []
        self.values: list[float] = []

    def ask(self) -> Places:
        """Return the point that the trees rank first, or a random one."""
        place = 0
        if len(self.points) == 1 or (self.points and self.dice.random() < 0.2):
            place = self.dice.randrange(len(self.left))
        elif self.points:
            known = self.trees.DMatrix(
                self.numbers.array(self.points, dtype=float), self.numbers.array(self.values)
            )
            settings = {
                "max_depth": 3,
                "gamma": 1e-4,
                "eta": 0.3,
                "objective": "rank:pairwise",
                "verbosity": 0,
            }
            model = self.trees.train({**settings, "nthread": 1, "seed": self.seed}, known)
            ranks = model.predict(self.trees.DMatrix(self.numbers.array(self.left, dtype=float)))
            place = int(ranks.argmax())
        self.points.append(self.left.pop(place))
        return dict(zip(self.space, self.points[-1], strict=True))

    def tell(self, value: float, _error: float) -> None:
        """Keep its throughput: what the trees are shown is positive."""
        self.values.append(math.exp(value))


class HorovodTuner(Peer):
    """The procedure of Horovod's autotuning: a Gaussian process over numbers, then each switch by itself.

    All numeric knobs together: four test points, then the greatest expected improvement under a noise of 0.8; after
    that the values of each other knob one after the other, the best kept. Horovod takes 20 samples before it comes to
    the switches; its option for that is set so that 20 arms reach all of them. What it discards to warm up is left out.
    """

    points = (1 / 16, 1 / 2, 1 / 4, 1 / 8)
    """Test points, as shares of every range."""
    noise, margin = 0.8, 0.01
    arms, least = 20, 8

    def __init__(self, space: Mapping[str, Axis], seed: int, first: Sequence[Places] = ()) -> None:
        super().__init__(space, seed, first)
        self.dice = random.Random(seed)
        self.numeric = [knob for knob, axis in space.items() if axis.ordered]
        self.told: list[tuple[Places, float]] = []
        self.asked: Places = {}
        self.moves = self._walk()

    def _walk(self) -> Iterator[Places]:
        switches = [knob for knob in self.space if knob not in self.numeric]
        samples = max(self.least, self.arms - sum(self.space[knob].count - 1 for knob in switches))
        for share in self.points:
            shares = {knob: round(share * (self.space[knob].count - 1)) for knob in self.numeric}
            yield {**self.baseline(), **shares}
        for _ in range(samples - len(self.points)):
            yield {**self.baseline(), **self._improve()}
        for knob in switches:
            best = self._best()
            for place in range(self.space[knob].count):
                if place != best[knob]:
                    yield {**best, knob: place}
        while True:
            yield self._best()

    def _best(self) -> Places:
        return max(self.told, key=lambda pair: pair[1])[0]

    def _improve(self) -> Places:
        import numpy
        from scipy.stats import norm
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel

        known = numpy.array([[places[knob] for knob in self.numeric] for places, _ in self.told], dtype=float)
        kernel = ConstantKernel() * RBF(1.0, (0.05, 50.0))
        process = GaussianProcessRegressor(
            kernel, alpha=self.noise**2, normalize_y=True, random_state=self.seed
        )
        process.fit(known, [value for _, value in self.told])
        drawn = [[self.dice.randrange(self.space[k].count) for k in self.numeric] for _ in range(2000)]
        mean, error = process.predict(numpy.array(drawn, dtype=float), return_std=True)
        gain = mean - process.predict(known).max() - self.margin
        z = gain / numpy.maximum(error, 1e-12)
        best = int((gain * norm.cdf(z) + error * norm.pdf(z)).argmax())
        return dict(zip(self.numeric, drawn[best], strict=True))

    def ask(self) -> Places:
        """Return its next sample."""
        self.asked = next(self.moves)
        return self.asked

    def tell(self, value: float, _error: float) -> None:
        """Keep it."""
        self.told.append((self.asked, value))
