"""The rules of a lab, as pure functions of its ledger: what a race may spend, what counts as a gain, what is promised.

LOND (Javanmard and Montanari 2015, arXiv 1502.06197; 2018, Annals of Statistics 46): the t-th idea's race tells a gain
that is none with probability at most a_t = q g_t (D + 1), where the g are at least 0 and add up to 1, and D gains had
been told when it was started. Every race measures fresh launches, so that whatever was asked and seen before, that
probability holds given all of it. Where race t tells a false gain, at least D + 1 are told in the end, so that its part
of E[false gains / gains] is at most a_t / (D + 1) = q g_t, and all parts add up to q at most: in whatever order ideas
are asked, however each depends on those before, wherever one stops, and with races side by side. `benchmarks/labs.py`
holds it against others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from advisor.protocol.answers.raced import LabPlace, RaceAnswer, RacedSide
from advisor.protocol.gains import spell_share
from advisor.protocol.lab import Adopted, Ended, Entry, LabStatus, Launch, Opened, Purpose, Started
from advisor.protocol.states import Verdict
from advisor.protocol.training.workload import list_changed_files

FIRST_SHARE = 0.8
"""Share of the error that the expected ideas have together; each further batch of as many spends half of what is
left."""
MOST_ERROR = 0.025
"""No race of a lab tells a false gain more often than a race outside one."""


def share_of(number: int, expected: int) -> float:
    """Return the share g of the error that the `number`-th idea (from 1) may spend; all of them add up to 1."""
    batch = (number - 1) // expected
    if batch == 0:
        return FIRST_SHARE / expected
    return (1.0 - FIRST_SHARE) * 0.5**batch / expected


def error_of(number: int, expected: int, false_gains: float, told: int) -> float:
    """Return the probability with which the `number`-th idea's race may tell a gain that is none."""
    return min(MOST_ERROR, false_gains * share_of(number, expected) * (told + 1))


@dataclass
class Lab:
    """What a ledger says."""

    opened: Opened
    started: dict[int, Started] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)
    adopted: list[Adopted] = field(default_factory=list)

    @property
    def baseline(self) -> Launch:
        """What ideas are held against today."""
        return self.adopted[-1].baseline if self.adopted else self.opened.baseline

    @property
    def ideas(self) -> list[Started]:
        """The ideas that were raced, in their order."""
        return [race for race in self.started.values() if race.purpose is Purpose.IDEA]

    @property
    def told(self) -> list[int]:
        """The races that told a gain."""
        return [number for number, end in self.ended.items() if end.is_told]

    @property
    def next_error(self) -> float:
        """What the next idea's race may spend."""
        opened = self.opened
        return error_of(len(self.ideas) + 1, opened.ideas, opened.false_gains, len(self.told))

    @property
    def minutes_left(self) -> float:
        """Minutes that no race has taken: one without an end counts as what it asked for."""
        taken = 0.0
        for number, race in self.started.items():
            end = self.ended.get(number)
            answer = end.answer if end else None
            taken += answer.cost.wall_s / 60.0 if answer else race.minutes
        return self.opened.minutes - taken


def read_lab(entries: Sequence[Entry]) -> Lab:
    """Return what the entries of a ledger say; the first one opens the lab. Raises ValueError for others."""
    if not entries or not isinstance(entries[0].event, Opened):
        raise ValueError("the ledger does not begin with an opened lab")
    lab = Lab(entries[0].event)
    for entry in entries[1:]:
        event = entry.event
        if isinstance(event, Started):
            lab.started[event.race] = event
        elif isinstance(event, Ended):
            lab.ended.setdefault(event.race, event)
        elif isinstance(event, Adopted):
            lab.adopted.append(event)
    return lab


def judge(lab: Lab, race: Started, answer: RaceAnswer) -> tuple[bool, str]:
    """Return whether a race's answer is a gain of the lab, and what becomes of it as a sentence."""
    if changed := _find_changed(lab, race, answer):
        return False, (
            f"The baseline is another one than before ({changed} changed), so that nothing is told of this idea: put "
            "it back, or open another lab."
        )
    gain = answer.describe_gain()
    if race.purpose is not Purpose.IDEA:
        return False, gain or answer.because
    if answer.verdict is Verdict.CHANGE:
        return True, f"A gain: {gain}."
    # What differs besides the speed is told beside this sentence.
    if answer.verdict is Verdict.KEEP or answer.gain is None or not answer.is_like_for_like:
        return False, f"No gain is told. {answer.because}"
    return False, f"Not decided: {gain}. Asking again is another race, with an error of its own."


def place_race(race: Started, end: Ended) -> LabPlace:
    """Return the place of a race in its lab, for its answer."""
    return LabPlace(
        number=race.race,
        idea=race.idea,
        by=race.by,
        error=race.spent,
        is_told=end.is_told,
        sentence=end.sentence,
    )


def _find_changed(lab: Lab, race: Started, answer: RaceAnswer) -> str:
    """The files of the baseline that are not what they were in the first race against it."""
    for number, end in lab.ended.items():
        if number != race.race and end.answer is not None and lab.started[number].a == race.a:
            return name_changed(end.answer.a, answer.a)
    return ""


def name_changed(before: RacedSide, now: RacedSide) -> str:
    """Return the script's own files that ran in two versions: `net.py, train.py`."""
    return ", ".join(list_changed_files(before.sources, now.sources))


def state_promise(false_gains: float) -> str:
    """Return what a lab promises, in two sentences."""
    return (
        f"Of the gains told in this lab at most {spell_share(false_gains, 1 if false_gains < 0.1 else 0)} are none, in "
        "expectation: in whatever order, by whomever and however many ideas are asked, each one after the others' "
        "answers or beside them. It is about being faster than the baseline of its race by any amount, in the races' "
        "own launches on this machine; the ratios themselves are told with 95 % intervals, each by itself."
    )


def describe_lab(lab: Lab) -> LabStatus:
    """Return how a lab stands."""
    opened = lab.opened
    return LabStatus(
        lab=opened.lab,
        minutes=opened.minutes,
        minutes_left=max(0.0, lab.minutes_left),
        false_gains=opened.false_gains,
        spent=math.fsum(share_of(place, opened.ideas) for place in range(1, len(lab.ideas) + 1)),
        next_error=lab.next_error,
        ideas=len(lab.ideas),
        told=tuple(lab.told),
        adopted=tuple(event.race for event in lab.adopted),
        open=tuple(number for number in lab.started if number not in lab.ended),
        baseline=lab.baseline,
        promise=state_promise(opened.false_gains),
    )
