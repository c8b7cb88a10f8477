"""The answer as every screen tells it: result, what to be careful about, what to do, a step, what is left, cost."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from advisor.answers.own_words import OwnLine
from advisor.answers.step import Step, tell_step
from advisor.answers.wording import EFFECT_WORDS, spell_duration
from advisor.protocol.answers.advice import Action, Advice, RungAdvice, Verdict, continue_command
from advisor.protocol.answers.moods import say_moods
from advisor.protocol.answers.why import say_left, say_saving
from advisor.protocol.gains import (
    NOISY,
    Quality,
    say_launch_noise,
    spell_bound,
    spell_fraction,
    spell_likely,
    spell_range,
)
from advisor.protocol.kinds import Effect

_FLAGS_TOLD = 2
_TOO_WIDE = 2.5
"""The ends of an interval this many times apart: more time would make it worth more."""
_UNKNOWN_SAVING = -math.inf


@dataclass(frozen=True)
class Use:
    """How the strategy is put in place, as it is typed in this folder."""

    command: str = ""
    """To paste; empty where nothing is to change."""
    note: str = ""
    """What the command carries and asks for."""
    lines: tuple[OwnLine, ...] = ()
    """What to write in place of it."""
    program: str = "advisor"
    """How `advisor` itself is typed."""
    tune: str = "tune"
    """The words after it that measure the job: `ray tune --nodes 2 --state DIR`."""
    before: str = ""
    """What stands before other commands where they do not find the job by themselves."""
    page: str = ""
    """Where the job's page or its report is: an address or a file; empty where there is neither."""


@dataclass(frozen=True)
class Line:
    """One line that puts a part of the strategy in place."""

    text: str
    where: str
    """Where it goes; empty where the line says it."""
    saving: str
    """`saves 36.0 ms (27.4 … 46.3) a step`, alone or `with the others`; empty for the only change without a figure."""


@dataclass(frozen=True)
class Answer:
    """An advice in the words that people read, in the order in which they need them."""

    verdict: Verdict
    first: str
    """What is worth more than any speed; empty for most scripts."""
    result: str
    """`at least 2.6x faster, most likely 3.6x`, or the headline of what is not a change."""
    certainty: str
    """`95 % CI 2.6x … 5.2x, 2 launches`; empty without an interval."""
    moods: str
    """The moods that the script as it stands has, what ends them, and the gain in each; empty where it has one."""
    careful: tuple[str, ...]
    """What the result must not be read without, the most important first."""
    rates: tuple[tuple[str, float], ...]
    """Samples a second of the script as it stands and, of a change, as advised."""
    rate_range: tuple[float, float] | None
    """What the last of them lies between, with 95 %; None where that is not known."""
    rate_unit: str
    lines: tuple[Line, ...]
    """For the user's own script or command, largest saving first."""
    open_changes: int
    """How many changes have no such line."""
    command: str
    """To paste: it starts the training as advised, or gives the job more time."""
    command_note: str
    to_do: str
    """What the user does by hand, beside the command or in its place; empty where the command does everything."""
    exactness: str
    """What the changes do to the results of the training."""
    step: Step | None
    """None where no account of a step was measured."""
    bound: str
    """What bounds a step, in a sentence."""
    left: str
    """What was tried and stays as the user has it."""
    cost: str
    offers: tuple[tuple[str, str], ...]
    """Options that allow more, each with what it measured."""
    more: tuple[str, str]
    """Where the rest is told: a command, and an address or a file with figures, or what the command shows."""


def make_answer(advice: Advice, use: Use | None = None) -> Answer:
    """Return the answer of `advice`; `use` is how it is put in place."""
    use = use or Use()
    is_change = advice.verdict is Verdict.CHANGE
    result, certainty = _say_result(advice)
    base, gain = advice.baseline_samples_per_s, advice.gain
    rates = [("yours", base)]
    if is_change:
        rates.append(("advised", advice.strategy_samples_per_s))
    is_known = is_change and gain is not None and gain.quality is Quality.KNOWN
    command, note, to_do = _say_what_to_do(advice, use)
    how = f"{use.before}{use.program} advice {advice.job_id} -v"
    return Answer(
        verdict=advice.verdict,
        first=advice.first,
        result=result,
        certainty=certainty,
        moods=say_moods(advice.moods),
        careful=_list_careful(advice),
        rates=tuple(rates),
        rate_range=(base * gain.low, base * gain.high) if gain and is_known else None,
        rate_unit=advice.rate_unit,
        lines=_order_lines(advice, use.lines) if is_change else (),
        open_changes=len(advice.changes) - sum(len(line.knobs) for line in use.lines),
        command=command,
        command_note=note,
        to_do=to_do,
        exactness=_say_exactness(advice) if is_change else "",
        step=tell_step(advice),
        bound=f"{advice.diagnosis.title}. {advice.diagnosis.sentence}",
        left=say_left(advice),
        cost=_say_cost(advice),
        offers=tuple(_tell_offer(rung) for rung in advice.list_offers()),
        more=(how, use.page or "how we know"),
    )


def _say_result(advice: Advice) -> tuple[str, str]:
    """The result, what is sure first, and what it rests on."""
    gain = advice.gain
    if advice.verdict is not Verdict.CHANGE or gain is None:
        return f"{advice.headline[:1].lower()}{advice.headline[1:]}", ""
    if gain.quality is not Quality.KNOWN:
        return f"{gain.describe()}: more minutes tell", gain.describe_basis()
    figures = (gain.ratio, gain.low, gain.high)
    bound = spell_bound(*figures)
    likely = f"{bound}, most likely {spell_likely(*figures)}" if bound else spell_likely(*figures)
    doubt = "; wide: more minutes narrow it" if gain.high > _TOO_WIDE * gain.low else ""
    launches = f"{gain.sessions} launch{'es' if gain.sessions != 1 else ''}"
    return likely, f"95 % CI {spell_range(*figures)}, {launches}{doubt}"


def _list_careful(advice: Advice) -> tuple[str, ...]:
    flags = dict.fromkeys(flag.sentence for flag in advice.diagnosis.flags)
    inexact = [
        f"{advice.catalogue.spell_name(name, advice.software)} {EFFECT_WORDS[effect]}."
        for name in advice.changes
        if (effect := advice.catalogue[name].effect) is not Effect.EXACT
    ]
    if inexact:
        inexact.append("Compare the accuracy of one full training before you rely on it.")
    told = (_say_noise(advice), *advice.watch, " ".join(inexact), *list(flags)[:_FLAGS_TOLD])
    return tuple(sentence for sentence in told if sentence)


def _say_noise(advice: Advice) -> str:
    """How far the baseline's launches were apart, where a gain of the size told could hide in that."""
    noise = advice.launch_noise
    if noise is None or noise < NOISY:
        return ""
    if advice.verdict is Verdict.CHANGE and advice.gain is not None and math.log(advice.gain.low) > 2 * noise:
        return ""
    return f"{say_launch_noise(noise)}: a quieter machine or more minutes show smaller gains."


def _order_lines(advice: Advice, lines: Sequence[OwnLine]) -> tuple[Line, ...]:
    """Each line with what it saves, the largest first; what several lines save together is told once."""
    reasons = {reason.knob: reason for reason in advice.reasons}
    known = [[r for name in line.knobs if (r := reasons.get(name)) and r.effect] for line in lines]
    savings = [tuple(dict.fromkeys(map(say_saving, each))) for each in known]
    most = [max((r.effect.saved_s for r in each if r.effect), default=_UNKNOWN_SAVING) for each in known]
    told: list[Line] = []
    seen: set[str] = set()
    for at in sorted(range(len(lines)), key=lambda place: -most[place]):
        own = [saving for saving in savings[at] if saving not in seen]
        seen.update(own)
        is_shared = any(saving in other for saving in own for o, other in enumerate(savings) if o != at)
        words = f"saves {' and '.join(own)} a step{', with the others' if is_shared else ''}" if own else ""
        if not own and len(advice.reasons) > 1:
            words = "known with the others only"
        told.append(Line(lines[at].text, lines[at].where, words))
    return tuple(told)


def _say_what_to_do(advice: Advice, use: Use) -> tuple[str, str, str]:
    """The command to paste, what to know of it, and the sentence where there is none."""
    if advice.verdict is Verdict.CHANGE:
        return use.command, use.note, ""
    if advice.action is Action.CONTINUE:
        command = continue_command(advice.job_id, advice.continue_s, f"{use.program} {use.tune}")
        where = "on every node, as before; " if use.tune.startswith("tune --here") else ""
        return command, f"{where}goes on where it stood", use.note
    return "", "", f"{advice.what_to_do} {use.note}".strip()


def _say_exactness(advice: Advice) -> str:
    if advice.certificate:
        return advice.certificate
    exact = all(advice.catalogue[name].effect is Effect.EXACT for name in advice.changes)
    return "All keep the mathematics exact." if exact else ""


def _say_cost(advice: Advice) -> str:
    cost = advice.cost
    parts = [spell_duration(cost.wall_s)]
    if cost.pays_back_after_s is not None:
        parts.append(f"pays back after {spell_duration(cost.pays_back_after_s)} of training")
    elif advice.smallest_gain is not None and advice.action is not Action.CHECK_ACCURACY:
        parts.append(f"enough to find gains from {spell_fraction(advice.smallest_gain)} on")
    return " · ".join(parts)


def _tell_offer(rung: RungAdvice) -> tuple[str, str]:
    gain = rung.gain
    told = spell_likely(gain.ratio, gain.low, gain.high) if gain else ""
    return f"--allow {rung.effect}", f"measured {told}, but {EFFECT_WORDS[rung.effect]}"
