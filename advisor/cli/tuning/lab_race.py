"""A race in a lab: written into the ledger before it is launched, and judged when it has its answer."""

import getpass
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from advisor.cli.exits import CommandFailed, Exit
from advisor.cli.screen import Screen
from advisor.cli.tuning.job_spec import WantedJob
from advisor.cli.tuning.preflight import check_here
from advisor.cli.tuning.race_job import AskedRace, run_race
from advisor.cli.tuning.two_sides import Side
from advisor.lab.ledger import Event, Ledger, LedgerFault
from advisor.lab.rules import MOST_ERROR, Lab, judge, place_race
from advisor.protocol.answers.raced import RaceAnswer
from advisor.protocol.kinds import Effect
from advisor.protocol.lab import Ended, Launch, Purpose, Started
from advisor.protocol.states import Verdict
from advisor.protocol.training.workload import WorkloadKind


def name_asker() -> str:
    """`maria@node01`."""
    user = "somebody"
    with suppress(KeyError, OSError):
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


def race_idea(
    folder: Path,
    idea: str,
    by: str,
    vary_b: Callable[[Side], Side],
    effect: Effect,
    minutes: float,
    min_gain: float,
    screen: Screen,
) -> RaceAnswer:
    """Race an idea against the lab's baseline, of which `vary_b` makes B; `min_gain` is in percent."""
    ledger = Ledger(folder)

    def make(lab: Lab) -> Started:
        b = vary_b(_side_of(lab.baseline))
        return Started(
            race=len(lab.started) + 1,
            idea=idea,
            by=by,
            a=lab.baseline,
            b=Launch(command=b.command, folder=str(b.folder)),
            effect=effect,
            minutes=minutes,
            min_gain=min_gain / 100.0,
            error=lab.next_error,
        )

    return start_race(ledger, make, screen)


def verify_race(
    ledger: Ledger, number: int, purpose: Purpose, by: str, minutes: float, screen: Screen
) -> RaceAnswer:
    """Race the idea of a race (0: today's baseline) once more: against the baseline, or the first one (MEASURE)."""

    def make(lab: Lab) -> Started:
        told = lab.started.get(number)
        first = lab.opened.baseline
        is_measure = purpose is Purpose.MEASURE
        return Started(
            race=len(lab.started) + 1,
            purpose=purpose,
            idea="what the lab brought" if is_measure else f"once more: {told.idea if told else ''}",
            by=by,
            a=first if is_measure else lab.baseline,
            b=told.b if told else lab.baseline,
            effect=told.effect if told else Effect.CONVERGENCE,
            minutes=minutes,
            min_gain=told.min_gain if told else 0.01,
            error=MOST_ERROR,
            of=number,
        )

    return start_race(ledger, make, screen)


def start_race(ledger: Ledger, make: Callable[[Lab], Started], screen: Screen) -> RaceAnswer:
    """Write a race into the ledger, launch it, and write its end: what was started counts, whatever becomes of it."""
    started: list[Started] = []

    def make_checked(lab: Lab) -> Event:
        race = make(lab)
        if race.minutes > lab.minutes_left:
            raise LedgerFault(
                f"The race asks for {race.minutes:g} minutes, and the lab has {max(0.0, lab.minutes_left):.1f} of "
                f"{lab.opened.minutes:g} left: give it fewer with --minutes, or open another lab."
            )
        # What cannot be launched is refused before it counts.
        spec = _build(lab, race).build_spec()
        if not os.environ.get("ADVISOR_URL"):
            check_here(spec, os.environ)
        started.append(race)
        return race

    lab = ledger.append(datetime.now(UTC), make_checked)
    race = started[0]
    screen.tell(f"Race {race.race} of the lab, by {race.by}: {race.idea}. It counts from here on.")
    return _run(ledger, WantedJob(_build(lab, race).build_spec(), new=True, pauses=True), race, screen)


def resume_race(ledger: Ledger, number: int, screen: Screen) -> RaceAnswer:
    """Go on with a race that was started and has no end: by its job where there is one, else by launching it."""
    lab = ledger.read()
    race = lab.started.get(number)
    if race is None or number in lab.ended:
        raise CommandFailed(
            Exit.USAGE,
            f"Race {number} {'has its end' if race else 'was never started'}.",
            "`advisor lab status` names the races without an end.",
        )
    spec = _build(lab, race).build_spec()
    try:
        return _run(ledger, WantedJob(None, resume=spec.name), race, screen)
    except CommandFailed as failure:
        if failure.exit_code is not Exit.NOT_FOUND:
            raise
    return _run(ledger, WantedJob(spec, new=True, pauses=True), race, screen)


def _run(ledger: Ledger, wanted: WantedJob, race: Started, screen: Screen) -> RaceAnswer:
    answers: list[RaceAnswer] = []

    def keep(answer: RaceAnswer) -> None:
        ends: list[Ended] = []

        def end(lab: Lab) -> Event:
            is_told, sentence = judge(lab, race, answer)
            ends.append(Ended(race=race.race, answer=answer, is_told=is_told, sentence=sentence))
            return ends[0]

        try:
            ledger.append(datetime.now(UTC), end)
        except LedgerFault as fault:
            raise LedgerFault(
                f"{fault} The race has its answer ({answer.verdict.value}; job {answer.job_id}), which is kept: "
                f"`advisor lab resume {race.race}` writes it down without measuring."
            ) from fault
        answers.append(answer.model_copy(update={"lab": place_race(race, ends[0])}))

    def fail(failure: str) -> None:
        ended = Ended(race=race.race, failure=failure, sentence=f"No answer. {failure}")
        ledger.append(datetime.now(UTC), lambda _: ended)

    run_race(wanted, keep, screen, fail)
    return answers[0]


def is_confirmed(answer: RaceAnswer) -> bool:
    """Whether a race that verifies a told gain again shows it."""
    return answer.verdict is Verdict.CHANGE


def _side_of(launch: Launch) -> Side:
    return Side.read(launch.command, Path(launch.folder))


def _build(lab: Lab, race: Started) -> AskedRace:
    return AskedRace(
        _side_of(race.a),
        _side_of(race.b),
        race.effect,
        race.minutes,
        race.min_gain * 100.0,
        lab.opened.nodes,
        WorkloadKind(lab.opened.kind_of_workload),
        name=f"lab {lab.opened.lab} race {race.race}",
        error=2.0 * race.error,
    )
