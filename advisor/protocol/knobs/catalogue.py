"""The catalogue's entries: the knobs of PaddlePaddle Fleet's DistributedStrategy and its surroundings.

Defaults and rules of thumb are those of the Fleet documents. `docs/knobs.md` is generated from this file.
"""

import difflib
import re
from collections.abc import Iterable, Mapping

from advisor.protocol.base import Value
from advisor.protocol.knobs.carried import CARRIED
from advisor.protocol.knobs.communication import COMMUNICATION
from advisor.protocol.knobs.compute import COMPUTE
from advisor.protocol.knobs.environment import ENVIRONMENT
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.knobs.loading import LOADING
from advisor.protocol.knobs.sharding import SHARDING
from advisor.protocol.knobs.training import TRAINING

CATALOGUE: Mapping[str, Knob] = {
    knob.name: knob
    for knob in (*COMMUNICATION, *TRAINING, *COMPUTE, *ENVIRONMENT, *LOADING, *SHARDING, *CARRIED)
}
"""Every knob by name."""


_MOST = 3
_COMMON = frozenset({"mb", "size", "in", "of", "num", "use", "the", "to", "speed", "cap"})
"""Words that stand in too many places to mean a knob by themselves; beside another one they count half."""


def find_nearest(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the known names with letters most like these, best first, at most three."""
    by_small = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(name.casefold(), by_small, n=_MOST, cutoff=0.6)
    return tuple(by_small[small] for small in near)


def find_nearest_knobs(name: str) -> tuple[str, ...]:
    """Return the knobs that an unknown name may mean: `bucket_size` is fuse_grad_size_in_MB."""
    typed = _split(name)
    scores = {
        knob.name: sum(0.5 if word in _COMMON else 1.0 for word in typed & _split(_describe(knob)))
        for knob in CATALOGUE.values()
        if not knob.carried
    }
    most = max(1.0, *scores.values())
    by_words = [knob for knob, score in scores.items() if score == most]
    near = (*find_nearest(name, CATALOGUE), *(by_words if len(by_words) <= _MOST else by_words[:1]))
    return tuple(dict.fromkeys(near))[:_MOST]


def say_unknown_knobs(names: Iterable[str]) -> str:
    """`bucket_size: no such knob (did you mean fuse_grad_size_in_MB?); docs/knobs.md lists them`."""
    told = [f"{name}: no such knob{_ask(find_nearest_knobs(name))}" for name in names]
    return f"{', '.join(told)}; `advisor knobs` lists them"


def _describe(knob: Knob) -> str:
    return f"{knob.name} {knob.meaning} {knob.realised}"


def _ask(near: tuple[str, ...]) -> str:
    return f" (did you mean {' or '.join(near)}?)" if near else ""


def _split(text: str) -> set[str]:
    words = re.findall(r"[a-z]+|\d+", re.sub(r"([a-z])([A-Z])", r"\1 \2", text).casefold())
    return {word.removesuffix("s") for word in words}


def spell_name(name: str, software: Mapping[str, str]) -> str:
    """Return what users of the training's framework call a knob: PyTorch's word, or the name itself."""
    title = CATALOGUE[name].title if name in CATALOGUE and "torch" in software else ""
    return title or name


def spell_with_unit(value: Value, unit: str = "") -> str:
    """Return a knob's value as people write it: `on`, `32 MB`, `1 thread`, `2 threads`, `empty` for no text."""
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return "on" if value else "off"
    # A script's own 20,971 bytes are 0.0199995 MB: four digits are enough to know it by.
    digits = ".4g" if isinstance(value, float) and abs(value) < 1 else "g"
    text = format(value, digits) if isinstance(value, float) else str(value)
    if unit.endswith("s") and text == "1":
        unit = unit.removesuffix("es") if unit.endswith(("sses", "ches")) else unit[:-1]
    return f"{text} {unit}".strip()
