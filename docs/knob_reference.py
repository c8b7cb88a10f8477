"""The reference of all knobs, docs/knobs.md: the catalogue, and what `benchmarks/knob_effects.py` measured.

`docs/make_reference.py` writes it, and a test compares it with the code.
"""

import json
import re
from collections import Counter
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
        "Arguments of the training DataLoader; the documents read with DALI instead, which a trial does not touch, nor "
        "torchdata's StatefulDataLoader and nodes: what these make a rank wait is timed.",
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
are never varied, each for the reason that stands behind it.

How to read the tables:

* **Values** gives the type, the range a search may use, and the unit. *log* means that distances are felt as ratios.
* **Default** is the default that the Fleet documents give; where they give none, that of the tool which has the setting
  (Paddle, NCCL, torch). Gains are never measured against it, but against your script as it stands.
* **Effect** says what a knob may change besides the speed. *exact*: the same mathematics. *numeric*: other rounding.
  *convergence*: another optimisation. Only exact knobs are advised unless the job allows more, and a knob of the two
  other classes wins only if the loss does not suffer.
* **Switch** says when a new value can take effect. *hot*: between two steps of running processes. *slow*: there too,
  but after a compilation. *cold*: only in new processes, so that each value costs a launch.
* **Realised by** is what a trial does in PyTorch. *Note n* is a sentence that several knobs share: [notes](#notes).
* **Measured** is the change of throughput on our testbed (two network namespaces on one machine of two CPU cores, see
  [the results](results/knob_effects.md)), with its 95 % interval. It shows that the lever acts; yours will differ. *–*:
  not measured there.
* **Paddle** is the field of Paddle's DistributedStrategy (*–*: it has none), whether the exports for Paddle {versions}
  write it, and where Paddle acts on it. Of a strategy's fields only those are written that were timed, with those that
  they need.
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
    notes = _find_notes()
    for place, (title, meaning) in _PLACES.items():
        knobs = [knob for knob in CATALOGUE.values() if knob.place is place]
        text += f"\n## {title}\n\n{meaning}\n"
        if varied := [knob for knob in knobs if not knob.carried]:
            text += "\n" + _write_table(varied, effects or {}, notes)
        if idle := [knob for knob in knobs if knob.carried]:
            text += "\nCarried:\n\n" + "".join(_write_carried(knob, notes) for knob in idle)
    text += "\n## Notes\n\n" + "".join(f"{number}. {note}\n" for number, note in enumerate(notes, 1))
    rules = "".join(f"* {rule.name}\n" for rule in COUPLING_RULES)
    obeyed = "Every strategy obeys these. One that does not is refused, with a sentence for each broken rule."
    return f"{text}\n## Rules between knobs\n\n{obeyed}\n\n{rules}"


def _find_notes() -> list[str]:
    """Sentences of nine words and more that several rows would repeat."""
    said = [
        sentence
        for knob in CATALOGUE.values()
        for sentence in (knob.realised, *_split_sentences(_say_in_paddle(knob)))
    ]
    return [text for text, times in Counter(said).items() if times > 1 and len(text.split()) >= 9]


def _split_sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) (?=[A-Z])", text)


def _point(text: str, notes: Sequence[str]) -> str:
    """The text with what a note says left to that note."""
    for number, note in enumerate(notes, 1):
        text = text.replace(note, f"*Note {number}.*")
    return text


def _say_in_paddle(knob: Knob) -> str:
    return f"`{knob.paddle_field}`: {describe_in_paddle(knob.name)}" if knob.paddle_field else "–"


def _write_table(knobs: Sequence[Knob], effects: Effects, notes: Sequence[str]) -> str:
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
    rows = [columns, tuple("---" for _ in columns), *(_write_row(knob, effects, notes) for knob in knobs)]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |\n" for row in rows)


def _write_row(knob: Knob, effects: Effects, notes: Sequence[str]) -> tuple[str, ...]:
    default = spell_with_unit(knob.default)
    return (
        f"`{knob.name}`",
        knob.meaning,
        _spell_with_units(knob),
        default,
        knob.effect,
        knob.switch,
        _point(knob.realised, notes),
        _describe_effect(effects.get(knob.name)),
        _point(_say_in_paddle(knob), notes),
    )


def _write_carried(knob: Knob, notes: Sequence[str]) -> str:
    paddle = f" Paddle: {_point(_say_in_paddle(knob), notes)}" if knob.paddle_field else ""
    default = spell_with_unit(knob.default)
    return f"* `{knob.name}`: {knob.meaning} Default: {default}. {_point(knob.realised, notes)}{paddle}\n"


def _describe_effect(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "–"
    values = ", ".join(f"{name} {spell_with_unit(value)}" for name, value in row["overrides"].items())
    if "refused" in row:
        return f"refused: {row['refused']}"
    return f"{row['gain']:+.1%} ({row['low']:+.1%} … {row['high']:+.1%}) with {values}"


def _spell_with_units(knob: Knob) -> str:
    if knob.kind is bool:
        return "on/off"
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
