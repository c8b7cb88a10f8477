"""Live labs: the dice alone say which ideas help, and what is kept says what was told."""

import copy
import time

import pytest
from ledger import BLIND, next_time, read_rows
from live_labs import check_lab, count_kept, draw_lab, read_told

from advisor.lab.ledger import LedgerFault

LABS = [row for row in read_rows(BLIND / "labs.jsonl.xz") if row.get("races")]


def test_one_or_two_ideas_help_and_all_others_are_the_baseline_in_disguise() -> None:
    seen = set()
    for number in range(100):
        base, gains = draw_lab(number, 8)
        helping = [gain for gain in gains if gain]
        assert len(helping) in (1, 2)
        assert all(0.05 <= gain <= 0.10 for gain in helping)
        assert base["kind"] != "compute"  # labs run side by side
        seen |= {place for place, gain in enumerate(gains) if gain}
    assert seen == set(range(8))


def test_kept_steps_and_rules_say_what_the_ledger_told_and_other_steps_do_not() -> None:
    lab = next(row for row in LABS if read_told(row))
    assert check_lab(lab) == []
    other = copy.deepcopy(lab)
    place = count_kept(lab, None)[0]
    for block in other["races"][place]["history"]["blocks"]:
        if "overrides" in block["plan"]:
            block["result"]["ticks"] = [2 * ticks for ticks in block["result"]["ticks"]]
    assert [sentence.split(":")[0] for sentence in check_lab(other)] == [
        f"lab {lab['number']} race {lab['races'][place]['number']}"
    ]


def test_a_told_gain_that_was_written_in_afterwards_is_named() -> None:
    lab = next(row for row in LABS if '"is_told": false' in row["ledger"])
    with pytest.raises(LedgerFault, match="somebody edited it"):
        check_lab(lab | {"ledger": lab["ledger"].replace('"is_told": false', '"is_told": true')})


def test_a_time_of_day_is_the_next_one() -> None:
    for text in ("00:00", "12:30", "23:59"):
        assert 0.0 < next_time(text) - time.time() <= 25 * 3600.0  # a day may have 25 hours
