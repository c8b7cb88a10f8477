"""What becomes of a race, whoever writes it down: issued, accepted, given up, blamed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from advisor.course.races import (
    Changed,
    accept_race,
    end_race,
    give_up_race,
    issue_race,
    may_close,
)
from advisor.protocol.asked.jobs import Stage
from advisor.protocol.base import Value
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.results import BlockResult, RaceRules
from advisor.protocol.measured.trials import (
    Block,
    BlockState,
    JobHistory,
    Outcome,
    Purpose,
    Session,
    SessionState,
    Trial,
    TrialState,
)
from advisor.tuning.asked import Tuning
from advisor.tuning.decisions import BASELINE, Candidate, Race

NOW = datetime(2026, 1, 1, tzinfo=UTC)
THEN = NOW + timedelta(seconds=9)
FUSED: dict[str, Value] = {"fuse_all_reduce_ops": False}
AMP: dict[str, Value] = {"amp": True}
TWO: dict[str, Value] = {"nccl_comm_num": 2}


def candidate(changes: dict[str, Value], purpose: Purpose = Purpose.SEARCH) -> Candidate:
    return Candidate(purpose, Changes(changes), "It may help.")


def race(*arms: Candidate, number: int = 0, smallest_gain: float | None = None) -> Race:
    return Race(Stage.SEARCH, "Why not.", arms, RaceRules(), number, smallest_gain)


def launch(name: str = "s0", **fields: object) -> Session:
    values: dict[str, object] = {
        "id": name, "job_id": "job", "generation": 0, "state": SessionState.RUNNING,
        "created_at": NOW, "started_at": NOW,
    }  # fmt: skip
    return Session.model_validate({**values, **fields})


def died(session: Session, reason: str = "Rank 1 failed.", steps: int = 100, **fields: object) -> Session:
    ended = {"state": SessionState.ENDED, "outcome": Outcome.CRASHED, "reason": reason, "total_steps": steps}
    return session.model_copy(update={**ended, **fields})


def measured(**fields: object) -> BlockResult:
    values: dict[str, object] = {
        "steps": 20, "step_time_s": (0.1,) * 20, "samples_per_step": 8.0, "wall_s": 2.0, "losses": (1.0,) * 20,
    }  # fmt: skip
    return BlockResult(**{**values, **fields})


@dataclass
class Played:
    """A job whose transitions are kept in lists."""

    trials: list[Trial] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    ids: count = field(default_factory=count)  # type: ignore[type-arg]

    def issue(self, session: Session, decided: Race) -> Changed:
        ordinal = sum(block.session_id == session.id for block in self.blocks)
        changed = issue_race(
            session, decided, self.trials, CATALOGUE, ordinal, NOW, lambda: f"b{next(self.ids)}"
        )
        self.trials += changed.trials
        self.blocks += changed.blocks
        return changed

    def accept(self, arms: Sequence[Block], *results: BlockResult) -> Changed:
        reported = {arm.id: result for arm, result in zip(arms, results, strict=True)}
        trials = {trial.number: trial for trial in self.trials}
        changed = accept_race(
            arms,
            reported,
            trials,
            lambda: [measured()],
            lambda: (CATALOGUE, self.trials),
            THEN,
            Tuning(),
        )
        self.put(changed)
        return changed

    def end(self, session: Session, in_trouble: bool = False) -> Changed:
        arms = [block for block in self.blocks if block.state is BlockState.ISSUED]
        history = JobHistory(
            trials=tuple(self.trials),
            blocks=tuple(self.blocks),
            sessions=(*self.sessions, launch(session.id)),
        )
        changed = end_race(session, arms, lambda: history, THEN, in_trouble=in_trouble)
        self.sessions.append(session)
        self.put(changed)
        return changed

    def put(self, changed: Changed) -> None:
        now = {block.id: block for block in changed.blocks}
        self.blocks = [now.get(block.id, block) for block in self.blocks]


@pytest.fixture
def played() -> Played:
    return Played()


def test_a_race_makes_its_trials_once_and_tells_them_before_itself(played: Played) -> None:
    first = played.issue(launch(), race(BASELINE, candidate(FUSED), smallest_gain=0.02))
    assert [trial.number for trial in first.trials] == [0, 1]
    assert [(block.arm, block.ordinal, block.trial_number) for block in first.blocks] == [
        (0, 0, 0),
        (1, 1, 1),
    ]
    assert [told.sentence.split()[0] for told in first.told] == ["Trial", "Trial", "This", "Race"]
    assert first.told[-1].sentence == "Race 0 of the baseline, trial 1: Why not."
    assert first.told[-2].facts is not None

    again = played.issue(launch(), race(BASELINE, candidate(FUSED), candidate(TWO), number=1))
    assert [trial.number for trial in again.trials] == [2]
    assert [block.ordinal for block in again.blocks] == [2, 3, 4]
    other = played.issue(launch("s1"), race(BASELINE, candidate(FUSED, Purpose.CONFIRM), number=2))
    assert [trial.number for trial in other.trials] == [3], "a verdict is a trial of its own"
    assert other.blocks[0].ordinal == 0


def test_a_stage_is_told_where_it_begins() -> None:
    told = issue_race(launch(), race(BASELINE), (), CATALOGUE, 0, NOW, lambda: "b", begins_stage=True).told
    assert "The job is in its search stage." in [each.sentence for each in told]


def test_accepted_results_end_trials_of_the_search_and_never_the_baseline(played: Played) -> None:
    arms = played.issue(launch(), race(BASELINE, candidate(FUSED))).blocks
    changed = played.accept(arms, measured(), measured(consumed={"fuse_all_reduce_ops": "yes"}))
    assert [closing.number for closing in changed.closings] == [1]
    assert changed.closings[0].outcome is Outcome.FINISHED
    assert all(block.state is BlockState.DONE and block.summary for block in changed.blocks)
    assert [block.summary.contrast is None for block in changed.blocks if block.summary] == [True, False]
    assert {block.finished_at for block in changed.blocks} == {THEN}
    assert changed.told[0].sentence == "Race 0 was run over 40 timed steps."


def test_a_race_that_drifted_counts_for_nothing_and_says_so(played: Played) -> None:
    arms = played.issue(launch(), race(BASELINE, candidate(FUSED))).blocks
    changed = played.accept(
        arms, measured(drifted="Ranks drifted apart."), measured(drifted="Ranks drifted apart.")
    )
    assert not changed.closings
    assert changed.told[0].sentence.endswith("Nothing of it counts: Ranks drifted apart.")


def test_a_loss_is_held_against_the_jobs_baseline_where_the_race_had_none(played: Played) -> None:
    asked = []

    def list_baseline() -> list[BlockResult]:
        asked.append(True)
        return [measured()]

    arms = played.issue(launch(), race(candidate(FUSED), candidate(TWO))).blocks
    results = {arm.id: measured(consumed=dict.fromkeys(arm.plan.overrides, "yes")) for arm in arms}
    trials = {trial.number: trial for trial in played.trials}
    accept_race(arms, results, trials, list_baseline, lambda: (CATALOGUE, ()), THEN, Tuning())
    assert asked


def test_what_was_in_force_counts_where_nothing_acted_on_the_rest(played: Played) -> None:
    arms = played.issue(launch(), race(BASELINE, candidate({**FUSED, **TWO}), candidate(FUSED))).blocks
    half = measured(consumed=dict.fromkeys(FUSED, "yes"), not_consumed={"nccl_comm_num": "Memory is short."})
    whole = measured(consumed=dict.fromkeys(FUSED, "yes"))
    told = played.accept(arms, measured(), half, whole).closings
    assert [(each.outcome, each.ran) for each in told] == [
        (Outcome.INEFFECTIVE, None),
        (Outcome.FINISHED, None),
    ], "the rest is another arm of the race"

    arms = played.issue(launch("s1"), race(BASELINE, candidate({**AMP, **TWO}), number=1)).blocks
    [closing] = played.accept(
        arms, measured(), measured(consumed=dict.fromkeys(AMP, "yes"), not_consumed=half.not_consumed)
    ).closings
    assert closing.outcome is Outcome.FINISHED
    assert closing.ran is not None
    assert (closing.ran.changes, closing.ran.effect) == (Changes(AMP), Effect.NUMERIC)
    assert "nccl_comm_num: Memory is short. What ran is the rest, amp on." in closing.reason

    arms = played.issue(launch("s2"), race(BASELINE, candidate(TWO), number=2)).blocks
    [closing] = played.accept(arms, measured(), measured(not_consumed=half.not_consumed)).closings
    assert closing.outcome is Outcome.INEFFECTIVE


def test_giving_up_nothing_changes_nothing() -> None:
    assert give_up_race((), "It was cancelled.", NOW) == Changed()


def test_the_strategy_that_raced_alone_when_the_launch_died_is_to_blame(played: Played) -> None:
    healthy = launch("s0")
    played.accept(played.issue(healthy, race(BASELINE)).blocks, measured())
    played.sessions.append(died(healthy, "Asked to end.", 500, outcome=Outcome.FINISHED))
    played.issue(launch("s1"), race(BASELINE, candidate(FUSED), number=1))
    changed = played.end(died(launch("s1"), log_tail="Traceback"))
    assert [(c.number, c.outcome, c.log_tail) for c in changed.closings] == [
        (1, Outcome.CRASHED, "Traceback")
    ]
    assert changed.closings[0].told.sentence == "Trial 1 crashed: Rank 1 failed."
    assert {block.finished_at for block in changed.blocks} == {THEN}
    assert [block.note for block in changed.blocks] == ["Its session ended: Rank 1 failed."] * 2
    assert changed.told[0].sentence == "Race 1 was given up: Its session ended: Rank 1 failed."


@pytest.mark.parametrize(
    "why",
    [
        "several suspects",
        "a trouble of its own",
        "a lost node",
        "the baseline alone died so before",
        "it was measured before",
    ],
)
def test_nobody_is_blamed(played: Played, why: str) -> None:
    healthy = launch("s0")
    arms = [BASELINE, candidate(FUSED)]
    if why == "it was measured before":
        played.accept(
            played.issue(healthy, race(*arms)).blocks,
            measured(),
            measured(consumed=dict.fromkeys(FUSED, "yes")),
        )
    else:
        played.accept(played.issue(healthy, race(BASELINE)).blocks, measured())
    played.sessions.append(died(healthy, "Asked to end.", 500, outcome=Outcome.FINISHED))
    if why == "the baseline alone died so before":
        played.issue(launch("s9"), race(BASELINE, number=5))
        played.end(died(launch("s9"), "Rank 1 failed.", 130))
    if why == "several suspects":
        arms.append(candidate(TWO))
    played.issue(launch("s1"), race(*arms, number=1))
    fields = {"outcome": Outcome.LOST} if why == "a lost node" else {}
    changed = played.end(died(launch("s1"), **fields), in_trouble=why == "a trouble of its own")
    assert not changed.closings
    assert all(block.state is BlockState.VOID for block in changed.blocks)


def test_a_strategy_with_launches_of_its_own_that_was_measured_is_to_blame_for_its_second_death(
    played: Played,
) -> None:
    arm, cold = candidate(FUSED), Changes(FUSED)
    healthy = launch("s0", cold=cold)
    played.accept(played.issue(healthy, race(arm)).blocks, measured(consumed=dict.fromkeys(FUSED, "yes")))
    played.sessions.append(died(healthy, "Asked to end.", 500, outcome=Outcome.FINISHED))
    blamed = []
    for number in (1, 2):
        session = launch(f"s{number}", cold=cold)
        played.issue(session, race(arm, number=number))
        blamed.append(len(played.end(died(session, f"It failed at {number}.", 100 * number)).closings))
    assert blamed == [0, 1]


def test_a_strategy_that_was_measured_is_to_blame_for_its_second_death(played: Played) -> None:
    healthy, arms = launch("s0"), (BASELINE, candidate(FUSED))
    acted = measured(consumed=dict.fromkeys(FUSED, "yes"))
    played.accept(played.issue(healthy, race(*arms)).blocks, measured(), acted)
    played.sessions.append(died(healthy, "Asked to end.", 500, outcome=Outcome.FINISHED))
    blamed = []
    for number in (1, 2):
        played.issue(launch(f"s{number}"), race(*arms, number=number))
        blamed.append(
            len(played.end(died(launch(f"s{number}"), f"It failed at {number}.", 100 * number)).closings)
        )
    assert blamed == [0, 1]


@pytest.mark.parametrize(
    ("was", "outcome", "may"),
    [
        (None, Outcome.FINISHED, True),
        (Outcome.CANCELLED, Outcome.FINISHED, True),
        (Outcome.FINISHED, Outcome.FINISHED, False),
        (Outcome.FINISHED, Outcome.CRASHED, True),
        (Outcome.CRASHED, Outcome.FINISHED, False),
        (Outcome.CRASHED, Outcome.DIVERGED, False),
    ],
)
def test_which_endings_replace_another(was: Outcome | None, outcome: Outcome, may: bool) -> None:
    state = TrialState.OPEN if was is None else TrialState.CLOSED
    trial = Trial(
        number=1, purpose=Purpose.SEARCH, changes=Changes(FUSED), effect=Effect.EXACT, because="x", created_at=NOW,
        state=state, outcome=was,
    )  # fmt: skip
    assert may_close(trial, outcome) is may
