"""The ledger of a lab, and its rules: nothing that was started is forgotten, and no edit goes unseen."""

import json
import math
import os
import re
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from advisor.answers.lab_page import write_lab_page
from advisor.lab.ledger import Ledger, LedgerFault
from advisor.lab.report import render_report, render_status
from advisor.lab.rules import Lab, describe_lab, error_of, judge, place_race, share_of
from advisor.protocol.answers.advice import Cost
from advisor.protocol.answers.raced import Difference, Gain, RaceAnswer, RacedSide
from advisor.protocol.kinds import Effect
from advisor.protocol.lab import Adopted, Ended, Launch, Opened, Purpose, Started
from advisor.protocol.states import Verdict

NOW = datetime(2026, 11, 28, tzinfo=UTC)
BASE = Launch(command="torchrun train.py", folder="/home/maria/run")
OTHER = Launch(command="torchrun train.py --fast", folder="/home/maria/run")


def open_lab(folder: Path) -> Ledger:
    ledger = Ledger(folder)
    ledger.open_lab(Opened(lab="a1b2c3", minutes=60, false_gains=0.05, ideas=4, baseline=BASE), NOW)
    return ledger


def start(idea: str = "an idea", purpose: Purpose = Purpose.IDEA) -> Callable[[Lab], Started]:
    def make(lab: Lab) -> Started:
        return Started(
            race=len(lab.started) + 1, purpose=purpose, idea=idea, by="maria", a=lab.baseline, b=OTHER,
            effect=Effect.EXACT, minutes=10, min_gain=0.01, error=lab.next_error,
        )  # fmt: skip

    return make


def answer(verdict: Verdict = Verdict.CHANGE, digest: str = "aa", other_work: bool = False) -> RaceAnswer:
    differs = Difference(name="batch", a="16", b="8", sentence="B trains on 8.", is_other_work=True)
    return RaceAnswer(
        job_id="j1",
        verdict=verdict,
        gain=Gain(low=1.02, likely=1.05, high=1.08, rounds=0, launches=4),
        because="Why.",
        what_to_do="Use it.",
        cost=Cost(wall_s=120.0, device_hours=0.1, trials=1, sessions=4),
        a=RacedSide(command="torchrun train.py", rate=100.0, sources={"train.py": digest}),
        b=RacedSide(command="torchrun train.py --fast", rate=105.0),
        differences=(differs,) if other_work else (),
    )


def end(race: int, found: RaceAnswer | None, *, is_told: bool) -> Callable[[Lab], Ended]:
    return lambda _: Ended(race=race, answer=found, is_told=is_told, sentence="So.")


def test_the_shares_of_all_ideas_add_up_to_the_error_and_gains_earn_more() -> None:
    assert math.fsum(share_of(number, 40) for number in range(1, 4001)) == pytest.approx(1.0)
    assert min(share_of(number, 40) for number in range(1, 400)) > 0.0
    assert error_of(5, 40, 0.05, told=2) == pytest.approx(3 * error_of(5, 40, 0.05, told=0))
    assert error_of(1, 1, 0.5, told=9) == 0.025


def test_what_was_started_counts_although_nobody_looked(tmp_path: Path) -> None:
    ledger = open_lab(tmp_path)
    first = ledger.append(NOW, start()).started[1]
    lab = ledger.append(NOW, start("another"))
    told = describe_lab(lab)
    assert told.ideas == 2
    assert told.open == (1, 2)
    assert told.minutes_left == 40
    assert told.spent == pytest.approx(2 * share_of(1, 4))
    assert first.error == pytest.approx(0.05 * 0.8 / 4)


def test_a_gain_is_told_adopted_and_reported(tmp_path: Path) -> None:
    ledger = open_lab(tmp_path)
    lab = ledger.append(NOW, start("no pause"))
    is_told, sentence = judge(lab, lab.started[1], answer())
    assert is_told
    assert sentence.startswith("A gain: at least +2.0 %, most likely +5.0 %")
    ledger.append(NOW, end(1, answer(), is_told=True))
    ledger.append(NOW, start("once more", Purpose.ADOPT))
    ledger.append(NOW, end(2, answer(), is_told=False))
    lab = ledger.append(NOW, lambda _: Adopted(race=1, verified_by=2, baseline=OTHER))
    assert lab.baseline == OTHER
    # What verifies a gain again is no idea: it spends nothing.
    assert describe_lab(lab).ideas == 1
    assert [place_race(lab.started[number], lab.ended[number]).error > 0.0 for number in (1, 2)] == [
        True,
        False,
    ]
    assert lab.next_error == pytest.approx(error_of(2, 4, 0.05, told=1))
    page = render_report(lab)
    assert "| 1 | no pause | maria | +2.0 … +8.0 % | gain, adopted | 1.00 % | 2.0 |" in page
    assert "advisor lab report --measure" in page
    assert "56 of 60 minutes left" in render_status(lab)
    assert "by maria: So. Adopted." in render_status(lab)


def test_page_draws_what_was_measured_and_keeps_hostile_text_as_text(tmp_path: Path) -> None:
    ledger = open_lab(tmp_path)
    unknown = answer(Verdict.UNDECIDED).model_copy(update={"gain": None})
    for number, found in enumerate((answer(), answer(Verdict.UNDECIDED), unknown), 1):
        ledger.append(NOW, start(f"<script>{number}</script> $body | & so"))
        ledger.append(NOW, end(number, found, is_told=number == 1))
    page = write_lab_page(ledger.append(NOW, start("under way")))
    assert not re.search(r"(src|href)=|https?:|url\(|<script", page)
    assert "&lt;script&gt;1&lt;/script&gt; $body | &amp; so" in page
    # Those with an interval alone are drawn, and in colour what was told.
    assert re.findall(r'<g class="(now|was)">', page) == ["now", "was"]
    assert "<h1>4 ideas were raced in 16.0 of 60 minutes, 1 told a gain, 0 were adopted.</h1>" in page


@pytest.mark.parametrize("low", [0.4, 0.97, 1.5])
def test_page_draws_no_interval_outside_of_its_chart(tmp_path: Path, low: float) -> None:
    ledger = open_lab(tmp_path)
    gain = Gain(low=low, likely=1.1 * low, high=1.2 * low, rounds=0, launches=4)
    ledger.append(NOW, start())
    lab = ledger.append(NOW, end(1, answer().model_copy(update={"gain": gain}), is_told=True))
    places = re.findall(r'(?:x1|x2|cx)="(.+?)"', write_lab_page(lab))
    assert len(places) == 5
    assert all(0.0 <= float(place) <= 200.0 for place in places)


def test_other_work_and_a_changed_baseline_tell_no_gain(tmp_path: Path) -> None:
    ledger = open_lab(tmp_path)
    ledger.append(NOW, start())
    ledger.append(NOW, end(1, answer(), is_told=True))
    lab = ledger.append(NOW, start("edits the baseline"))
    is_told, sentence = judge(lab, lab.started[2], answer(digest="bb"))
    assert not is_told
    assert "(train.py changed)" in sentence
    is_told, sentence = judge(lab, lab.started[2], answer(Verdict.UNDECIDED, other_work=True))
    assert not is_told
    assert sentence.startswith("No gain is told.")


@pytest.mark.parametrize("line", [1, 2, 3])
def test_an_edited_line_is_named_and_nothing_is_added(tmp_path: Path, line: int) -> None:
    ledger = open_lab(tmp_path)
    ledger.append(NOW, start())
    ledger.append(NOW, end(1, answer(Verdict.KEEP), is_told=False))
    lines = ledger.path.read_text().splitlines()
    said = json.loads(lines[line - 1])
    said["event"]["sentence" if line == 3 else "minutes"] = "told" if line == 3 else 1
    lines[line - 1] = json.dumps(said)
    ledger.path.write_text("\n".join(lines) + "\n")
    with pytest.raises(LedgerFault, match=f"Line {line} of .* somebody edited it"):
        ledger.append(NOW, start())
    assert ledger.path.read_text().splitlines() == lines


def test_a_line_taken_out_is_named(tmp_path: Path) -> None:
    ledger = open_lab(tmp_path)
    ledger.append(NOW, start())
    ledger.append(NOW, end(1, answer(), is_told=True))
    lines = ledger.path.read_text().splitlines()
    ledger.path.write_text("\n".join([lines[0], lines[2]]) + "\n")
    with pytest.raises(LedgerFault, match=r"Line 2 of .* does not follow"):
        ledger.read()


def test_what_a_killed_writer_left_is_no_entry(tmp_path: Path) -> None:
    ledger = open_lab(tmp_path)
    ledger.append(NOW, start())
    with ledger.path.open("ab") as file:
        file.write(b'{"at": "2026-11-28T00:00:00Z", "event": {"kind": "end')
    assert describe_lab(ledger.read()).open == (1,)
    lab = ledger.append(NOW, end(1, answer(), is_told=True))
    assert lab.told == [1]
    assert ledger.read().told == [1]


def test_a_full_disk_ends_in_a_sentence_and_loses_nothing(tmp_path: Path) -> None:
    ledger = open_lab(tmp_path)
    ledger.append(NOW, start())
    before = ledger.path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, hard))
    try:
        with pytest.raises(LedgerFault, match=r"cannot be written: .* Make room on its disk"):
            ledger.append(NOW, end(1, answer(), is_told=True))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ledger.path.read_bytes() == before
    assert ledger.append(NOW, end(1, answer(), is_told=True)).told == [1]


def test_askers_side_by_side_get_numbers_of_their_own(tmp_path: Path) -> None:
    ledger = open_lab(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda place: Ledger(tmp_path).append(NOW, start(f"idea {place}")), range(24)))
    lab = ledger.read()
    assert sorted(lab.started) == list(range(1, 25))
    assert {race.idea for race in lab.started.values()} == {f"idea {place}" for place in range(24)}


def test_a_second_lab_in_a_place_and_none_at_all_are_refused(tmp_path: Path) -> None:
    open_lab(tmp_path)
    with pytest.raises(LedgerFault, match="holds a lab already"):
        open_lab(tmp_path)
    with pytest.raises(LedgerFault, match=r"There is no lab at .*advisor lab open"):
        Ledger(tmp_path / "elsewhere").read()
    os.truncate(tmp_path / ".advisor" / "lab.jsonl", 0)
    with pytest.raises(LedgerFault, match="does not begin with an opened lab"):
        Ledger(tmp_path).read()
