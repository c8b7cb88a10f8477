"""The reference of all knobs, docs/knobs.md: the catalogue, and what `benchmarks/knob_effects.py` measured.

`docs/make_reference.py` writes it, and a test compares it with the code.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from advisor.protocol.kinds import Place, Scale
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import spell_with_unit
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.knobs.paddle import VERSIONS, describe_in_paddle
from advisor.protocol.knobs.strategy import COUPLING_RULES

_PLACES = {
    Place.STRATEGY: (
        "Strategy",
        "Fields of `DistributedStrategy` itself: how gradients and parameters travel.",
    ),
    Place.BUILD_STRATEGY: (
        "Build strategy",
        "Fields of `build_strategy`: how Paddle's program is fused and laid out.",
    ),
    Place.EXECUTION_STRATEGY: (
        "Execution strategy",
        "Fields of `execution_strategy`: how steps are executed. Paddle 3 has removed this block.",
    ),
    Place.ENVIRONMENT: ("Environment", "Variables that a training process reads when it starts."),
    Place.DATA_READING: (
        "Data reading",
        "Arguments of the training DataLoader; the documents read with DALI instead, which a trial does not touch.",
    ),
    Place.PSERVER: (
        "Parameter server",
        "Settings of Fluid's transpiler. Parameter servers are tuned as options of a command of your own, and "
        "[exports for Paddle](exports.md#paddles-parameter-servers) know those by their names.",
    ),
}
_INTRODUCTION = """\
# Knobs

<!-- Generated from advisor/protocol/knobs/catalogue.py. Do not edit; run python docs/make_reference.py -->

A knob is one tunable field of a strategy. The names are those of PaddlePaddle Fleet's `DistributedStrategy`; fields
of a nested configuration are flattened, so `localsgd_k_steps` is `localsgd_configs.k_steps` in Paddle. This page lists
all {count} of them: trials have a lever for {varied}; {carried} are carried, that is, they are part of a strategy and
are never varied, each for the reason its row gives.

How to read the tables:

* **Values** gives the type, the range a search may use, and the unit. *log* means that distances are felt as ratios.
* **Default** is the default that the Fleet documents give; where they give none, that of the tool which has the setting
  (Paddle, NCCL, torch). Gains are never measured against it, but against your script as it stands.
* **Effect** says what a knob may change besides the speed. *exact*: the same mathematics. *numeric*: other rounding.
  *convergence*: another optimisation. Only exact knobs are advised unless the job allows more, and a knob of the two
  other classes wins only if the loss does not suffer.
* **Switch** says when a new value can take effect. *hot*: between two steps of running processes. *slow*: there too,
  but after a compilation. *cold*: only in new processes, so that each value costs a launch.
* **Realised by** is what a trial does in PyTorch, or why the knob is carried.
* **Measured** is the change of throughput on our testbed (two network namespaces on one machine of two CPU cores, see
  [the results](results/knob_effects.md)), with its 95 % interval. It shows that the lever acts; yours will differ.
* **Paddle** is the field of Paddle's DistributedStrategy, whether the exports for Paddle {versions} write it, and where
  Paddle acts on it. Of a strategy's fields only those are written that were timed, with those that they need.

An exported file says of every field whether it was *timed* (varied and timed as this very knob), *timed in
PyTorch* (through its PyTorch equivalent) or *not timed*; `strategy.json` spells them `measured`, `translated` and
`carried`. Files for other tools set only what was timed and what it needs to make sense; everything else stays at
that tool's own default, which can differ from the documented one.
"""


Effects = Mapping[str, Mapping[str, Any]]
"""Knob -> its row of `docs/results/knob_effects.json`: gain, low, high as shares, or refused, a sentence."""


def describe_knobs() -> str:
    """Return `docs/knobs.md`."""
    effects = Path(__file__).with_name("results") / "knob_effects.json"
    return write_reference(json.loads(effects.read_text(encoding="utf-8"))["knobs"])


def write_reference(effects: Effects | None = None) -> str:
    """Return the page as Markdown."""
    carried = sum(knob.carried for knob in CATALOGUE.values())
    text = _INTRODUCTION.format(
        count=len(CATALOGUE),
        varied=len(CATALOGUE) - carried,
        carried=carried,
        versions=" and ".join(VERSIONS),
    )
    for place, (title, meaning) in _PLACES.items():
        knobs = [knob for knob in CATALOGUE.values() if knob.place is place]
        text += f"\n## {title}\n\n{meaning}\n\n" + _write_table(knobs, effects or {})
    rules = "".join(f"* {rule.name}\n" for rule in COUPLING_RULES)
    obeyed = "Every strategy obeys these. One that does not is refused, with a sentence for each broken rule."
    return f"{text}\n## Rules between knobs\n\n{obeyed}\n\n{rules}"


def _write_table(knobs: Sequence[Knob], effects: Effects) -> str:
    columns = (
        "Knob",
        "Meaning",
        "Values",
        "Default",
        "Effect",
        "Switch",
        "Realised by",
        "Measured",
        "Paddle",
    )
    rows = [columns, tuple("---" for _ in columns), *(_write_row(knob, effects) for knob in knobs)]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |\n" for row in rows)


def _write_row(knob: Knob, effects: Effects) -> tuple[str, ...]:
    default = spell_with_unit(knob.default)
    realised = f"*carried:* {knob.realised}" if knob.carried else knob.realised
    return (
        f"`{knob.name}`",
        knob.meaning,
        _spell_with_units(knob),
        default,
        knob.effect,
        knob.switch,
        realised,
        _describe_effect(knob, effects.get(knob.name)),
        f"`{knob.paddle_field}`: {describe_in_paddle(knob.name)}" if knob.paddle_field else "no field",
    )


def _describe_effect(knob: Knob, row: Mapping[str, Any] | None) -> str:
    if knob.carried:
        return ""
    if row is None:
        return "not on this machine"
    values = ", ".join(f"{name} {spell_with_unit(value)}" for name, value in row["overrides"].items())
    if "refused" in row:
        return f"refused: {row['refused']}"
    return f"{row['gain']:+.1%} ({row['low']:+.1%} … {row['high']:+.1%}) with {values}"


def _spell_with_units(knob: Knob) -> str:
    if knob.kind is bool:
        return "on or off"
    if knob.choices:
        return " or ".join(map(spell_with_unit, knob.choices))
    if knob.low is None or knob.high is None:
        return "text" if knob.kind is str else f"a number{f' of {knob.unit}' if knob.unit else ''}"
    kind = "whole number" if knob.kind is int else "number"
    unit = f" {knob.unit}" if knob.unit else ""
    scale = ", log" if knob.scale is Scale.LOG else ""
    return f"{kind}, {_number(knob.low)} to {_number(knob.high)}{unit}{scale}"


def _number(value: int | float) -> str:
    return str(int(value)) if value == int(value) else str(value)
