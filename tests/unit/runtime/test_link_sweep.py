"""The links of a job over NCCL: communicators are made where there is room, and opened before they are timed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from fleet_advisor_runtime.calibrating.link_sweep import LinkSweep  # noqa: E402
from fleet_advisor_runtime.levers.reduction.communicators import Communicators  # noqa: E402
from fleet_advisor_runtime.observe.clock import CpuClock  # noqa: E402

from tests.unit.runtime.lone_rank import open_lone_rank  # noqa: E402
from tests.unit.runtime.nccl_card import CPU, GIB, NcclCard  # noqa: E402


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[NcclCard]:
    with open_lone_rank():
        yield NcclCard(monkeypatch)


def sweep() -> list[dict[str, Any]]:
    exchange: Any = SimpleNamespace(gather=lambda value, *_: [value], broadcast=lambda value, *_: value)
    return LinkSweep(exchange, Communicators(0, 1, CPU), CPU, CpuClock(), 1).measure(65536)


def test_links_are_measured_over_communicators_that_were_opened_before(card: NcclCard) -> None:
    found = sweep()
    assert [line for line in card.seen if line != "look"] == ["make 0", "open 0", "make 1", "open 1"]
    assert card.seen[0] == "look"
    assert {entry["concurrent"] for entry in found} == {1, 2}


def test_without_room_nothing_is_made_and_what_was_measured_is_kept(card: NcclCard) -> None:
    card.free = GIB
    assert sweep() == []
    assert card.groups == []
    card.free = 4 * GIB
    card.each = 2 * GIB
    assert {entry["concurrent"] for entry in sweep()} == {1}
    assert len(card.groups) == 1


def test_a_communicator_that_fails_on_another_rank_leaves_nobody_waiting(card: NcclCard) -> None:
    card.others = lambda own: [1] if own == [0] else own
    assert sweep() == []
    assert card.list_alive() == []
