"""Routes of what never changes while the server runs: the knob catalogue and the export formats."""

from typing import Any

from advisor.api.access import Reader
from advisor.api.strict_json import make_router
from advisor.exporters import FormatInfo
from advisor.protocol.answers.strategy_file import describe_schema
from advisor.protocol.base import Message, Value
from advisor.protocol.kinds import Effect, Place, Scale, Switch
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.knob import Knob
from advisor.services.answers.advice import list_formats

router = make_router(tags=["reference"])


class KnobView(Message):
    """One knob of the catalogue."""

    name: str
    place: Place
    kind: str
    """bool, int, float or str."""
    default: Value
    """The documented default."""
    meaning: str
    effect: Effect
    """What it may change besides the speed."""
    switch: Switch
    """When a new value can take effect."""
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    scale: Scale
    unit: str
    realised: str
    """What the runtime does for it; for a carried knob, why it is not varied."""
    carried: bool
    """Exported, never varied."""


class KnobPage(Message):
    """All knobs."""

    items: tuple[KnobView, ...]


class FormatPage(Message):
    """All export formats."""

    items: tuple[FormatInfo, ...]


@router.get("/knobs", summary="The knob catalogue")
def list_knobs(_: Reader) -> KnobPage:
    """Return every tunable field of a strategy."""
    return KnobPage(items=tuple(_view(knob) for knob in CATALOGUE.values()))


@router.get("/export-formats", summary="The export formats")
def list_export_formats(_: Reader) -> FormatPage:
    """Return the formats that an advised strategy can be written in."""
    return FormatPage(items=list_formats())


@router.get("/strategy-schema", summary="The JSON Schema of strategy.json")
def show_strategy_schema(_: Reader) -> dict[str, Any]:
    """Return what a `strategy.json` of this version looks like."""
    return describe_schema()


def _view(knob: Knob) -> KnobView:
    return KnobView(
        name=knob.name,
        place=knob.place,
        kind=knob.kind.__name__,
        default=knob.default,
        meaning=knob.meaning,
        effect=knob.effect,
        switch=knob.switch,
        low=knob.low,
        high=knob.high,
        choices=knob.choices,
        scale=knob.scale,
        unit=knob.unit,
        realised=knob.realised,
        carried=knob.carried,
    )
