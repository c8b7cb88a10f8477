"""Job and history -> the next thing to do: probe, search, finals, simplification, confirmation; how failures are met.

The planner keeps no state: it reads the history anew each time, so a restarted server goes on where it stood.
"""

from datetime import datetime

from advisor.protocol.jobs import Job, Stage
from advisor.protocol.spending import describe_budget
from advisor.protocol.trials import JobHistory, Purpose, Session, SessionState
from advisor.tuning.allowance import affords
from advisor.tuning.composition import describe_changes, key_of
from advisor.tuning.confirmation import is_confirmed, next_confirmation
from advisor.tuning.contender import BASELINE, Contender, Turn, issue
from advisor.tuning.decisions import Decision, EndSession, Fail, Finish, Launch, Wait
from advisor.tuning.failures import find_dead_end
from advisor.tuning.finals import next_final
from advisor.tuning.gangs import decline_another, find_asking, join_search, resume_launch, settle_among_gangs
from advisor.tuning.record import PROBE_BLOCKS, Record
from advisor.tuning.search import next_strategy
from advisor.tuning.simplify import next_revert
from advisor.tuning.space import build_space


def plan(
    job: Job, history: JobHistory, now: datetime, session_id: str | None = None, *, quick: bool = False
) -> Decision:
    """Return what to do next.

    For the live session `session_id`: Measure, EndSession or Wait. Without one, while no session is live: Launch,
    Finish or Fail; while some are, whether another gang joins the search: Launch or Wait. A job of one gang needs
    no `session_id`: its live session asks. `quick` makes do with a suggestion that costs next to nothing to find.
    """
    record = Record(job, history, now, quick)
    live = find_asking(history, session_id, job.spec.gangs)
    if live is not None and live.state is not SessionState.RUNNING:
        return Wait(job.stage, f"The session is {live.state.value}: nothing can be measured in it now.")
    if live is None and history.live_sessions():
        return _plan_another(record, session_id)
    if live is None and (sentence := find_dead_end(record)) is not None:
        return Finish(sentence) if is_confirmed(record) else Fail(sentence)
    turn = (resume_launch(record, live) if live else None) or _next_turn(record, live)
    if live is not None:
        settled = settle_among_gangs(record, live, turn)
        if isinstance(settled, EndSession):
            return settled
        turn = settled
    if isinstance(turn, str):
        return _wind_up(record, live, turn)
    cold = record.required_cold(turn.contender.changes)
    if live is None:
        return Launch(turn.stage, _launch_because(record, turn), cold)
    if turn.fresh:
        return EndSession(
            turn.stage, "The confirmation goes on in a fresh launch, so that no launch's luck decides it."
        )
    if record.switches_at_launch and record.usable_in(live.id) and not turn.extension:
        return EndSession(
            turn.stage,
            "The next block needs a launch of its own: the program takes its knobs when it starts.",
        )
    if key_of(live.cold) != key_of(cold):
        what = describe_changes(cold) if cold else "the script's own launch settings"
        return EndSession(turn.stage, f"The next strategy needs a launch with {what}.")
    return issue(_settle_in(record, live, turn), record)


def _plan_another(record: Record, session_id: str | None) -> Decision:
    """Decide whether another gang joins the sessions that are live."""
    if session_id is not None:
        return Wait(record.job.stage, f"Session {session_id} is over: nothing is measured in it any more.")
    return decline_another(record) or join_search(record, _next_turn(record, None))


def _next_turn(record: Record, live: Session | None) -> Turn | str:
    """Return the next block, or a sentence why there is none."""
    if not affords(record, 1, launches=0 if live else 1):
        return f"{describe_budget(record.job, record.sessions, record.now)} is spent."
    facts = record.job.facts
    if facts is None or len(record.probe_blocks) < PROBE_BLOCKS:
        return Turn(
            Stage.PROBE,
            BASELINE,
            "The script as it stands: what it is, where its time goes, how noisy it is.",
        )
    why_over = "The confirmation has said what it can."
    if not _is_past_search(record):
        space = build_space(record.job, facts, record.probe_blocks)
        if space.is_empty and not space.higher:
            return "No knob can matter here: each was dropped with its reason."
        found = next_strategy(record, space)
        if isinstance(found, Contender):
            return _turn_for_search(record, live, found)
        why_over = found.because
    if (final := next_final(record, live)) is not None:
        return _extend(record, live, final)
    if (revert := next_revert(record, live)) is not None:
        return _extend(record, live, revert)
    if (confirmation := next_confirmation(record, live)) is not None:
        return _extend(record, live, confirmation)
    return why_over


def _is_past_search(record: Record) -> bool:
    """Once finals or confirmation have begun, the search stays closed, whatever the clock's estimates say."""
    return any(block.round is not None for block in record.history.blocks)


def _turn_for_search(record: Record, live: Session | None, strategy: Contender) -> Turn:
    if record.switches_at_launch or (
        live is not None and not live.cold and not record.required_cold(strategy.changes)
    ):
        since = _blocks_since_anchor(record, live)
        if since is None and record.pairs_within_a_session:
            return Turn(
                Stage.SEARCH, BASELINE, "A session begins with an anchor: the baseline under its conditions."
            )
        if since is not None and since >= record.anchor_every:
            return Turn(
                Stage.SEARCH,
                BASELINE,
                f"An anchor after {since} strategies: the baseline again, to see drift.",
            )
    return _extend(record, live, Turn(Stage.SEARCH, strategy, strategy.because))


def _blocks_since_anchor(record: Record, live: Session | None) -> int | None:
    """Return usable blocks since the session's last baseline block; any session's, where sessions hold one block."""
    blocks = record.usable_in(live.id) if live and record.pairs_within_a_session else list(record.usable)
    for since, block in enumerate(reversed(blocks)):
        if block.trial_number == record.baseline_number:
            return since
    return None


def _settle_in(record: Record, live: Session, turn: Turn) -> Turn:
    """Put a lead-in before the first compared block of a launch: caches and clocks are cold in it."""
    if turn.round is None or not record.has_lead_in or record.usable_in(live.id):
        return turn
    if live.cold:
        return Turn(turn.stage, turn.contender, "A lead-in block: the first of a launch is not compared.")
    return Turn(turn.stage, BASELINE, "An anchor as lead-in: the first block of a launch is not compared.")


def _extend(record: Record, live: Session | None, turn: Turn) -> Turn:
    """Mark the turn as an extension when its trial already has a block there that was not steady."""
    trial = record.find_trial(turn.contender.purpose, turn.contender.changes)
    if trial is None or not turn.contender.changes:
        return turn
    unsteady = any(
        b.trial_number == trial.number
        and b.round == turn.round
        and (turn.round is None or (live is not None and b.session_id == live.id))
        for b in record.usable
    )
    if not unsteady:
        return turn
    because = "No steady state in its first block: once more, twice as long."
    return Turn(turn.stage, turn.contender, because, turn.round, extension=True, fresh=turn.fresh)


def _launch_because(record: Record, turn: Turn) -> str:
    cold = record.required_cold(turn.contender.changes)
    if not record.sessions:
        return "The first launch: the script as it stands."
    if cold and record.job.spec.gangs > 1 and turn.stage is Stage.SEARCH:
        return turn.because
    if cold:
        return f"A launch with {describe_changes(cold)}."
    if turn.stage is Stage.CONFIRM:
        return "A fresh launch for the confirmation."
    last = record.sessions[-1]
    return f"The last launch is over ({last.outcome.value if last.outcome else last.state.value}): on with the next."


def _wind_up(record: Record, live: Session | None, because: str) -> Decision:
    """End the live session; without one, finish, or fail when not even the baseline was measured."""
    if live is not None:
        return EndSession(Stage.CONFIRM if record.trials_for(Purpose.CONFIRM) else record.job.stage, because)
    if record.baseline_blocks:
        return Finish(because)
    return Fail(
        f"{because} Not even the script as it stands was measured in it: raise the budget, or lower "
        "measurement.min_steps and block_s."
    )
