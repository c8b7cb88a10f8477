"""Makes a random training script and random settings for it from a number: what `random_runs.py` trains.

The scripts are what people write, in small: plain text that knows nothing of an advisor, a few dozen steps on a CPU.
"""

import random
from dataclasses import dataclass, field

from random_kinds import KINDS
from random_layouts import LAYOUTS
from random_ledger import draw_ledger
from random_objects import OBJECTS
from random_scripts import HEAD, draw_script
from random_settings import INEXACT, LOCAL, draw_any, draw_for

ORDINARY = "ordinary"
FIRST_KINDS = 200
"""Seeds below are all of the ordinary kind: they were published before there was another."""
_DRAWS = {**KINDS, **LAYOUTS, **OBJECTS, "ledger": draw_ledger}
ORDER = (ORDINARY, *_DRAWS, ORDINARY, "modes", "toggle", "unfreeze", "ledger")
"""The kinds of as many seeds in a row."""


@dataclass
class Case:
    """One script with the settings that it is held against itself under."""

    seed: int
    kind: str = ORDINARY
    ranks: int = 2
    script: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    features: list[str] = field(default_factory=list)

    @property
    def is_exact(self) -> bool:
        """Whether the settings leave the arithmetic as it is, up to its order."""
        return not any(knob in INEXACT for knob in self.settings)

    @property
    def is_bitwise(self) -> bool:
        """Whether not even the order of a sum may differ: two ranks have only one, and no optimizer is another's."""
        others = {"fuse_all_optimizer_ops", "num_threads"}
        pairs = self.ranks == 2 or self.kind in ("tensor_ddp", "pipeline_ddp")
        return self.is_exact and pairs and not others & self.settings.keys()

    @property
    def may_drift(self) -> bool:
        """Whether the settings let ranks' parameters differ between two averagings."""
        return any(knob in self.settings for knob in LOCAL)


def make_case(seed: int, kind: str = "") -> Case:
    """The same for the same number; of the kind that is its turn where none is given."""
    kind = kind or (ORDINARY if seed < FIRST_KINDS else ORDER[seed % len(ORDER)])
    draw = random.Random(seed)
    case = Case(seed, kind)
    if kind == ORDINARY:
        case.settings = draw_any(draw)
        hierarchical = "use_hierarchical_allreduce" in case.settings
        case.ranks = 4 if hierarchical else draw.choice((2, 2, 2, 2, 2, 3))
        case.script = HEAD + draw_script(draw, case)
        return case
    sketch = _DRAWS[kind](draw)
    case.ranks, case.script, case.features = sketch.ranks, sketch.script, sketch.features
    case.settings = draw_for(draw, sketch.knobs, sketch.ranks)
    return case
