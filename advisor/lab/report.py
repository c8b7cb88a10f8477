"""A lab for people: how it stands in a few lines, and its page in Markdown."""

from advisor.lab.rules import Lab, describe_lab, state_promise
from advisor.protocol.gains import spell_range, spell_share
from advisor.protocol.lab import Ended, Purpose, Started


def render_status(lab: Lab) -> str:
    """Return the lines of `advisor lab status`."""
    told = describe_lab(lab)
    lines = [
        f"LAB      {told.lab}: {told.minutes_left:.0f} of {told.minutes:g} minutes left",
        f"BASE     {told.baseline.command}   in {told.baseline.folder}",
        f"IDEAS    {told.ideas} raced, {spell_share(told.spent)} of the error spent; the next one tells a gain that is "
        f"none with {spell_share(told.next_error, 2)} at most",
        f"GAINS    {_list(told.told) or 'none told'}; adopted: {_list(told.adopted) or 'none'}",
    ]
    for number, race in lab.started.items():
        lines.append(f"         {_say_race(race, lab.ended.get(number), is_adopted=number in told.adopted)}")
    if told.open:
        lines.append(
            f"OPEN     {_list(told.open)}: under way, or killed; advisor lab resume {told.open[0]} goes on with it"
        )
    lines.append(f"PROMISE  {told.promise}")
    return "\n".join(lines)


def render_report(lab: Lab) -> str:
    """Return the lab as a page in Markdown."""
    opened = lab.opened
    lines = [
        f"# Lab {opened.lab}",
        "",
        state_promise(opened.false_gains),
        "",
        f"Baseline at the start: `{opened.baseline.command}`. Today: `{lab.baseline.command}`"
        + (f" in `{lab.baseline.folder}`." if lab.baseline.folder != opened.baseline.folder else "."),
        "",
        say_counts(lab),
        "",
        "| race | idea | by | B against the baseline (95 % CI) | answer | error | minutes |",
        "|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(map(_escape, list_cells(lab, race)))} |" for race in lab.started.values()),
        "",
        say_brought(lab),
    ]
    for sentence in list_seen(lab):
        lines += ["", sentence]
    return "\n".join(lines) + "\n"


def say_counts(lab: Lab) -> str:
    """Return how many ideas were raced, told and adopted."""
    told, minutes = describe_lab(lab), lab.opened.minutes
    return (
        f"{told.ideas} ideas were raced in {minutes - told.minutes_left:.1f} of {minutes:g} minutes, "
        f"{len(told.told)} told a gain, {len(told.adopted)} {'were' if len(told.adopted) != 1 else 'was'} adopted."
    )


def list_cells(lab: Lab, race: Started) -> tuple[str, ...]:
    """Return number, idea, asker, interval, answer, error spent and minutes of a race, as plain text."""
    end = lab.ended.get(race.race)
    answer = end.answer if end else None
    gain = answer.gain if answer else None
    verdict = "no end" if end is None else answer.verdict.value if answer else "failed"
    if end is not None and end.is_told:
        verdict = "gain, adopted" if race.race in describe_lab(lab).adopted else "gain"
    return (
        str(race.race),
        race.idea,
        race.by,
        spell_range(gain.likely, gain.low, gain.high) if gain else "not measured",
        verdict,
        spell_share(race.spent, 2) if race.spent else "none",
        f"{answer.cost.wall_s / 60:.1f}" if answer else f"{race.minutes:g} asked",
    )


def list_seen(lab: Lab) -> list[str]:
    """Return of each race what else differed, or why it has no answer."""
    seen = []
    for number, end in lab.ended.items():
        differences = end.answer.differences if end.answer else ()
        if differences or end.failure:
            told = " ".join(one.sentence for one in differences) or end.failure
            seen.append(f"Race {number}: {told}")
    return seen


def say_brought(lab: Lab) -> str:
    """Return what the adopted changes bring together, as far as it was measured."""
    measured = [
        end.answer
        for number, end in lab.ended.items()
        if lab.started[number].purpose is Purpose.MEASURE
        and lab.started[number].b == lab.baseline
        and end.answer is not None
    ]
    if not lab.adopted:
        return "Nothing was adopted."
    if not measured or measured[-1].gain is None:
        return (
            "What the adopted changes bring together was not measured: advisor lab report --measure races today's "
            "baseline against that of the start."
        )
    return f"Today's baseline against that of the start, in fresh launches: {measured[-1].describe_gain()}."


def _say_race(race: Started, end: Ended | None, *, is_adopted: bool) -> str:
    next_step = (" Adopted." if is_adopted else f" {say_next(race.race)}") if end and end.is_told else ""
    return f"{race.race:>3}  {race.idea}, by {race.by}: {end.sentence if end else 'no end yet'}{next_step}"


def say_next(race: int) -> str:
    """Return what to do with a told gain."""
    return f"Make it the baseline: advisor lab adopt {race}"


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(f"race {number}" for number in numbers)


def _escape(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
