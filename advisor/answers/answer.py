"""The answer as every screen tells it: result, what to be careful about, what to do, a step, what is left, cost."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.answers.wording import EFFECT_WORDS, spell_duration
from advisor.exporters.own_lines import OwnLine
from advisor.protocol.answers.advice import Action, Advice, Interval, RungAdvice, Verdict, continue_command
from advisor.protocol.answers.energy import spell_joules, spell_price
from advisor.protocol.answers.moods import say_moods
from advisor.protocol.answers.why import list_savings, say_left, say_saving, say_why, shorten
from advisor.protocol.gains import (
    NOISY,
    say_launch_noise,
    spell_bound,
    spell_fraction,
    spell_likely,
    spell_range,
)
from advisor.protocol.kinds import Effect
from advisor.protocol.measured.results import NOTICEABLE_S

_FLAGS_TOLD = 2
_TOO_WIDE = 2.5
"""The ends of an interval this many times apart: more time would make it worth more."""
_UNKNOWN_SAVING = -math.inf
_PARTS_NAMED = 3
"""Parts of a step that have a name of their own; the others are one."""


@dataclass(frozen=True)
class _Verdict:
    """What is told of a verdict whatever was measured."""

    tone: str
    """good, muted or caution."""
    figure: str = ""
    """What stands in the place of a gain."""
    begins: str = ""
    """How its headline begins, where that says no more than the figure."""
    unpromised: str = "Nothing was measured often enough to promise a gain, so none is promised."
    """What is said where no gain was measured."""


_VERDICTS: Mapping[Verdict, _Verdict] = {
    Verdict.CHANGE: _Verdict("good"),
    Verdict.KEEP: _Verdict("muted", "Keep your settings", "Keep your settings: ", unpromised=""),
    Verdict.UNDECIDED: _Verdict("caution", "Undecided", "Not decided: "),
}


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
    written: str = ""
    """The folder whose files were written; empty where none were."""


@dataclass(frozen=True)
class Line:
    """One line that puts a part of the strategy in place."""

    text: str
    where: str
    """Where it goes; empty where the line says it."""
    saving: str
    """`saves 36.0 ms (27.4 … 46.3) a step`, alone or `with the others`; empty for the only change without a figure."""


@dataclass(frozen=True)
class Part:
    """One part of a step."""

    name: str
    before_s: float
    after_s: float | None
    """None where nothing is advised."""


@dataclass(frozen=True)
class Step:
    """One step as the script stands and, of a change, as advised, in seconds."""

    before_s: float
    after_s: float | None
    parts: tuple[Part, ...]
    """What moved most, or takes most, first; all other parts together last. They add up to the step."""
    notes: tuple[str, ...]
    """What the figures do not show."""


@dataclass(frozen=True)
class Answer:
    """An advice in the words that people read, in the order in which they need them."""

    tone: str
    """good, muted or caution: how sure and how welcome it is."""
    first: str
    """What is worth more than any speed; empty for most scripts."""
    result: str
    """`at least 2.6x faster, most likely 3.6x`, or the headline of what is not a change."""
    certainty: str
    """`95 % CI 2.6x … 5.2x, 2 launches`; empty without an interval."""
    card: tuple[str, str, str, str]
    """The same in large letters: what leads, the figure, its interval, and a sentence."""
    unpromised: str
    """That no gain is promised, and why; empty where one is, or where it is known that there is none."""
    why: tuple[str, ...]
    """Where a step's time went, and what each change saves."""
    moods: str
    """The moods that the script as it stands has, what ends them, and the gain in each; empty where it has one."""
    careful: tuple[str, ...]
    """What the result must not be read without, the most important first."""
    rates: tuple[tuple[str, float], ...]
    """Samples a second of the script as it stands and, of a change, as advised."""
    rate_range: tuple[float, float] | None
    """What the last of them lies between, with 95 %; None where that is not known."""
    rate_unit: str
    price: str
    """What a million samples cost, as it stands and as advised; empty where the job names no price."""
    energy: str
    """`4.2 J a sample, 3.1 as advised`; empty where no launch of its own told."""
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
    use, words = use or Use(), _VERDICTS[advice.verdict]
    is_change = advice.verdict is Verdict.CHANGE
    # Of any other verdict the gain is that of a strategy which is not advised.
    gain = advice.gain if is_change else None
    result, certainty = _say_result(advice, gain)
    base = advice.baseline_samples_per_s
    command, note, to_do = _say_what_to_do(advice, use)
    return Answer(
        tone=words.tone,
        first=advice.first,
        result=result,
        certainty=certainty,
        card=_fill_card(advice, words, gain),
        unpromised="" if advice.gain else words.unpromised,
        why=(say_why(advice), *list_savings(advice)) if is_change else (advice.diagnosis.sentence,),
        moods=say_moods(advice.moods),
        careful=_list_careful(advice, gain),
        rates=(("yours", base), *([("advised", advice.strategy_samples_per_s)] if is_change else [])),
        rate_range=(base * gain.low, base * gain.high) if gain and gain.is_known else None,
        rate_unit=advice.rate_unit,
        price=_say_price(advice, is_change),
        energy=_say_energy(advice),
        lines=_order_lines(advice, use.lines) if is_change else (),
        open_changes=len(advice.changes) - sum(len(line.knobs) for line in use.lines),
        command=command,
        command_note=note,
        to_do=to_do,
        exactness=_say_exactness(advice) if is_change else "",
        step=_tell_step(advice, gain),
        bound=f"{advice.diagnosis.title}. {advice.diagnosis.sentence}",
        left=say_left(advice),
        cost=_say_cost(advice),
        offers=tuple(_tell_offer(rung) for rung in advice.list_offers()),
        more=(f"{use.before}{use.program} advice {advice.job_id} -v", use.page or "how we know"),
    )


def _say_price(advice: Advice, is_change: bool) -> str:
    price, base, advised = advice.price_per_hour, advice.baseline_samples_per_s, advice.strategy_samples_per_s
    if price is None or base <= 0 or advised <= 0:
        return ""
    told = spell_price(base, advice.rate_unit, price)
    after = (
        f", {spell_price(advised, advice.rate_unit, price).partition(' ')[0]} as advised" if is_change else ""
    )
    return f"{told}{after}, at {price:g} an hour"


def _say_energy(advice: Advice) -> str:
    if advice.joules_before is None:
        return ""
    after = f", {advice.joules_after:.3g} as advised" if advice.joules_after is not None else ""
    return f"{spell_joules(advice.joules_before, advice.rate_unit)}{after}"


def _say_result(advice: Advice, gain: Interval | None) -> tuple[str, str]:
    """The result, what is sure first, and what it rests on."""
    if gain is None:
        return f"{advice.headline[:1].lower()}{advice.headline[1:]}", ""
    if not gain.is_known:
        return f"{gain.describe()}: more minutes tell", gain.describe_basis()
    figures = (gain.ratio, gain.low, gain.high)
    bound = spell_bound(*figures)
    likely = f"{bound}, most likely {spell_likely(*figures)}" if bound else spell_likely(*figures)
    doubt = "; wide: more minutes narrow it" if gain.high > _TOO_WIDE * gain.low else ""
    launches = f"{gain.sessions} launch{'es' if gain.sessions != 1 else ''}"
    return likely, f"95 % CI {spell_range(*figures)}, {launches}{doubt}"


def _fill_card(advice: Advice, words: _Verdict, gain: Interval | None) -> tuple[str, str, str, str]:
    first = f"{advice.first} " if advice.first else ""
    if gain is None:
        told = advice.headline.removeprefix(words.begins)
        return "", words.figure, "", f"{first}{told[:1].upper()}{told[1:]}"
    figures = (gain.ratio, gain.low, gain.high)
    bound, likely = spell_bound(*figures), spell_likely(*figures)
    figure = bound.removeprefix("at least ").removesuffix(" faster") or likely
    told = f"most likely {likely}, 95 % interval {spell_range(*figures)}" if gain.is_known else ""
    sentence = f"{first}more throughput, confirmed in {gain.describe_basis()}"
    return "at least" if bound else "", figure, told, sentence


def _list_careful(advice: Advice, gain: Interval | None) -> tuple[str, ...]:
    flags = dict.fromkeys(flag.sentence for flag in advice.diagnosis.flags)
    inexact = [
        f"{advice.catalogue.spell_name(name, advice.software)} {EFFECT_WORDS[effect]}."
        for name in advice.changes
        if (effect := advice.catalogue[name].effect) is not Effect.EXACT
    ]
    if inexact:
        inexact.append("Compare the accuracy of one full training before you rely on it.")
    told = (_say_noise(advice, gain), *advice.watch, " ".join(inexact), *list(flags)[:_FLAGS_TOLD])
    return tuple(sentence for sentence in told if sentence)


def _say_noise(advice: Advice, gain: Interval | None) -> str:
    """How far the baseline's launches were apart, where a gain of the size told could hide in that."""
    noise = advice.launch_noise
    if noise is None or noise < NOISY:
        return ""
    if gain is not None and math.log(gain.low) > 2 * noise:
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
    held = ""
    if use.written and advice.candidate and advice.verdict is Verdict.UNDECIDED:
        held = f"{use.written} holds your settings, not {advice.candidate.describe()}: that is not proven"
    if advice.action is Action.CONTINUE:
        command = continue_command(advice.job_id, advice.continue_s, f"{use.program} {use.tune}")
        where = "on every node, as before; " if use.tune.startswith("tune --here") else ""
        return command, f"{where}goes on where it stood", held
    return "", "", f"{advice.what_to_do} {held}".strip()


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


def _tell_step(advice: Advice, gain: Interval | None) -> Step | None:
    """The account of a step; None where it was not measured."""
    before, after = advice.phases_before, advice.phases_after
    if before.total_s() <= 0:
        return None
    is_change = bool(advice.changes) and after.total_s() > 0
    afters = dict(after.list_named()) if is_change else {}
    parts = [
        Part(shorten(name), was or 0.0, (afters[name] or 0.0) if is_change else None)
        for name, was in before.list_named()
    ]
    parts.sort(key=lambda part: -abs(part.before_s - (part.after_s or 0.0)))
    named = [
        part for part in parts[:_PARTS_NAMED] if abs(part.before_s - (part.after_s or 0.0)) >= NOTICEABLE_S
    ]
    rest = [part for part in parts if part not in named]
    named.append(
        Part(
            "other",
            sum(part.before_s for part in rest),
            sum(part.after_s or 0.0 for part in rest) if is_change else None,
        )
    )
    notes = []
    total = advice.total_ratio
    if is_change and gain is not None and total is not None and not gain.low <= total <= gain.high:
        notes.append("Slow steps are drawn in full; the result takes them for the machine's.")
    told = (before, after) if is_change else (before,)
    if any(phases.exposed_comm_s is None for phases in told):
        notes.append("The network's share could not be measured; backward includes it.")
    return Step(before.total_s(), after.total_s() if is_change else None, tuple(named), tuple(notes))
