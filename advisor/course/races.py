"""The life of a race: issued, then accepted or given up with its launch; each returns what it changes in the job.

Services write that down, a played job keeps it in lists: both follow the same rules.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from advisor.protocol.gains import say_smallest_gain
from advisor.protocol.knobs.catalogue import Catalogue
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult
from advisor.protocol.measured.trials import (
    Block,
    BlockPlan,
    BlockState,
    JobHistory,
    Outcome,
    Purpose,
    Session,
    Trial,
    TrialState,
)
from advisor.protocol.standing import Standing
from advisor.protocol.views import EventFacts, EventKind
from advisor.tuning.asked import Tuning
from advisor.tuning.decisions import Candidate, Race
from advisor.tuning.history.breakoffs import is_to_blame


@dataclass(frozen=True)
class Told:
    """An event of the job."""

    kind: EventKind
    sentence: str
    trial_number: int | None = None
    session_id: str | None = None
    facts: EventFacts | None = None


@dataclass(frozen=True)
class Closing:
    """A trial that ends, and what is told of it."""

    number: int
    outcome: Outcome
    reason: str
    told: Told
    log_tail: str = ""
    ran: Trial | None = None
    """The trial with the changes that were in force, where nothing acted on some of them."""


@dataclass(frozen=True)
class Changed:
    """What became of a job."""

    trials: tuple[Trial, ...] = ()
    """New ones."""
    blocks: tuple[Block, ...] = ()
    """Arms that are issued, measured or given up, as they are now."""
    closings: tuple[Closing, ...] = ()
    told: tuple[Told, ...] = ()
    """In order; of each closing its own comes after them."""
    standing: Standing | None = None
    """The strategy that is best so far, told with a race that is issued."""


def issue_race(
    session: Session,
    race: Race,
    trials: Sequence[Trial],
    catalogue: Catalogue,
    first_ordinal: int,
    now: datetime,
    make_id: Callable[[], str],
    *,
    begins_stage: bool = False,
) -> Changed:
    """Make the race's arms, and the trials that do not exist yet, among `trials`, all of the job's."""
    known, told = list(trials), list[Told]()
    blocks = []
    for place, arm in enumerate(race.arms):
        trial = _find_trial(known, arm)
        if trial is None:
            trial = Trial(
                number=known[-1].number + 1 if known else 0,
                purpose=arm.purpose,
                changes=arm.changes,
                effect=catalogue.effect_of(arm.changes),
                because=arm.because,
                created_at=now,
            )
            known.append(trial)
            sentence = f"Trial {trial.number} ({arm.purpose.value}): {arm.because}"
            told.append(Told(EventKind.TRIAL, sentence, trial.number))
        plan = BlockPlan(
            block_id=make_id(), trial_number=trial.number, overrides=arm.changes, rules=race.rules
        )
        blocks.append(
            Block(
                id=plan.block_id,
                session_id=session.id,
                trial_number=trial.number,
                ordinal=first_ordinal + place,
                race=race.number,
                arm=place,
                state=BlockState.ISSUED,
                plan=plan,
                issued_at=now,
            )
        )
    if begins_stage:
        told.append(Told(EventKind.JOB, f"The job is in its {race.stage.value} stage."))
    if race.smallest_gain is not None:
        facts = EventFacts(smallest_gain=race.smallest_gain)
        told.append(Told(EventKind.JOB, say_smallest_gain(race.smallest_gain), facts=facts))
    if race.named is not None:
        told.append(Told(EventKind.JOB, race.named.say(), facts=EventFacts(named=race.named)))
    names = ", ".join(
        f"trial {block.trial_number}" if block.plan.overrides else "the baseline" for block in blocks
    )
    sentence = f"Race {race.number} of {names}: {race.because}"
    told.append(Told(EventKind.BLOCK, sentence, blocks[-1].trial_number, session.id))
    return Changed(tuple(known[len(trials) :]), tuple(blocks), told=tuple(told), standing=race.standing)


def _find_trial(trials: Sequence[Trial], arm: Candidate) -> Trial | None:
    return next((t for t in trials if t.purpose is arm.purpose and t.changes == arm.changes), None)


def accept_race(
    arms: Sequence[Block],
    results: Mapping[str, BlockResult],
    trials: Mapping[int, Trial],
    list_baseline: Callable[[], Sequence[BlockResult]],
    read_job: Callable[[], tuple[Catalogue, Sequence[Trial]]],
    now: datetime,
    tuning: Tuning,
) -> Changed:
    """Take a race's results, by the ids of its arms; close the trials whose outcome they decide.

    `trials` are those of the arms. `list_baseline` is asked for what the script as it stands measured in the whole job
    where it had no part in this race, `read_job` for the job's knobs and all its trials where nothing acted on some
    changes of a strategy: what was measured then is the rest of it.
    """
    reference, session_id = results[arms[0].id], arms[0].session_id
    baseline = [results[arm.id] for arm in arms if not arm.plan.overrides] or list_baseline()
    done: list[Block] = []
    closings: list[Closing] = []
    for arm in arms:
        result, trial = results[arm.id], trials[arm.trial_number]
        summary = tuning.summarise(result, reference if arm.arm else None)
        done.append(
            arm.model_copy(
                update={"state": BlockState.DONE, "result": result, "summary": summary, "finished_at": now}
            )
        )
        judged = tuning.judge(trial, result, baseline)
        if (ran := _leave_out_idle(trial, result, read_job)) is not None:
            said = tuning.judge(ran, result, baseline)
            is_twin = any(closing.ran and closing.ran.changes == ran.changes for closing in closings)
            if said is not None and not is_twin:
                reason = (
                    f"{_say_idle(trial, result)} What ran is the rest, {ran.changes.describe()}. {said[1]}"
                )
                closings.append(_close(trial.number, said[0], reason, session_id, ran=ran))
                continue
        if judged is not None and may_close(trial, judged[0]):
            closings.append(_close(trial.number, *judged, session_id))
    steps = sum(result.steps for result in results.values())
    sentence = f"Race {arms[0].race} was run over {steps} timed steps."
    if reference.drifted:
        sentence += f" Nothing of it counts: {reference.drifted}"
    told = Told(EventKind.BLOCK, sentence, session_id=session_id)
    return Changed(blocks=tuple(done), closings=tuple(closings), told=(told,))


def _leave_out_idle(
    trial: Trial, result: BlockResult, read_job: Callable[[], tuple[Catalogue, Sequence[Trial]]]
) -> Trial | None:
    """Return a search trial with the changes that ranks had in force; None where those are all, none, or another's.

    The search ranks it by what was measured; a verdict measures it afresh, so that a value which one rank alone refused
    claims nothing.
    """
    if trial.purpose is not Purpose.SEARCH or trial.state is not TrialState.OPEN:
        return None
    if result.relaunch_needed or result.drifted:
        return None
    rest = Changes({name: value for name, value in trial.changes.items() if name not in result.not_consumed})
    if not rest or rest == trial.changes:
        return None
    catalogue, known = read_job()
    if any(each.purpose is trial.purpose and each.changes == rest for each in known):
        return None
    return trial.model_copy(update={"changes": rest, "effect": catalogue.effect_of(rest)})


def _say_idle(trial: Trial, result: BlockResult) -> str:
    idle = [name for name in trial.changes if name in result.not_consumed]
    reasons = " ".join(f"{name}: {result.not_consumed[name].rstrip('.')}." for name in idle)
    return f"Nothing acted on a part of it. {reasons}"


def give_up_race(arms: Sequence[Block], note: str, now: datetime) -> Changed:
    """Void the arms that are being measured; `note` says why."""
    if not arms:
        return Changed()
    update = {"state": BlockState.VOID, "note": note, "finished_at": now}
    told = Told(
        EventKind.BLOCK,
        f"Race {arms[0].race} was given up: {as_clause(note)}",
        session_id=arms[0].session_id,
    )
    return Changed(blocks=tuple(arm.model_copy(update=update) for arm in arms), told=(told,))


def end_race(
    session: Session,
    arms: Sequence[Block],
    read_history: Callable[[], JobHistory],
    now: datetime,
    *,
    in_trouble: bool = False,
) -> Changed:
    """Give up the race that was in flight when the session ended; `session` says how, `arms` are those in flight.

    A strategy that raced the baseline alone may be to blame; several are suspects, and none is where the session had
    a trouble of its own.
    """
    changed = give_up_race(arms, f"Its session ended: {as_clause(session.reason)}", now)
    suspects = {arm.trial_number: arm.plan.overrides for arm in arms if arm.plan.overrides}
    outcome = session.outcome
    if len(suspects) != 1 or outcome is None or not outcome.is_configurations_fault or in_trouble:
        return changed
    [(number, changes)] = suspects.items()
    history = read_history()
    trial = next(trial for trial in history.trials if trial.number == number)
    if not may_close(trial, outcome):
        return changed
    if not is_to_blame(_as_it_is(history, session, changed.blocks), session, changes):
        return changed
    closing = _close(number, outcome, session.reason, session.id, session.log_tail)
    return Changed(blocks=changed.blocks, closings=(closing,), told=changed.told)


def _as_it_is(history: JobHistory, session: Session, blocks: Sequence[Block]) -> JobHistory:
    """The history with a session and blocks as they are now."""
    now = {block.id: block for block in blocks}
    return history.model_copy(
        update={
            "sessions": tuple(session if each.id == session.id else each for each in history.sessions),
            "blocks": tuple(now.get(each.id, each) for each in history.blocks),
        }
    )


def may_close(trial: Trial, outcome: Outcome) -> bool:
    """Whether a trial is open, or ended in a way that this outcome replaces.

    One that had finished may be raced again, and fail then; one that the job's end cut off may be taken up again.
    """
    if trial.state is TrialState.OPEN or trial.outcome is Outcome.CANCELLED:
        return True
    return trial.outcome is Outcome.FINISHED and outcome is not Outcome.FINISHED


def _close(
    number: int, outcome: Outcome, reason: str, session_id: str, log_tail: str = "", ran: Trial | None = None
) -> Closing:
    told = Told(EventKind.TRIAL, f"Trial {number} {outcome.words}: {as_clause(reason)}", number, session_id)
    return Closing(number, outcome, reason, told, log_tail, ran)


def as_clause(sentence: str) -> str:
    """A sentence as it reads after a colon."""
    return sentence.strip() or "no reason was given."
