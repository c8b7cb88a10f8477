"""A user's own knobs in the search: completed by requirements, searched beside Fleet's, spared where memory ends."""

from dataclasses import replace
from typing import Any

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.training.workload import Workload
from advisor.tuning.space.reversion import list_units
from advisor.tuning.space.rules_of_thumb import first_strategies, own_strategies
from advisor.tuning.space.rungs import rung_strategies
from advisor.tuning.space.space import Space
from tests.unit.tuning.search_space import make_job, make_space

COMMAND = ("torchrun", "t.py", "--micro", "2", "--acc", "4", "--ac", "none")
OWN = ("--micro=1,2,4,8:exact", "--acc=1,2,4,8:exact", "--ac=none,full:exact")


def make_own_space(*own: str, require: tuple[str, ...] = ("micro * acc == 8",), **fields: Any) -> Space:
    workload = Workload(command=COMMAND, own=own or OWN, require=require)
    return make_space(make_job(JobSpec(workload=workload, **fields)))


def test_own_knobs_are_searched_beside_the_others() -> None:
    space = make_own_space()
    names = {d.knob.name: d.values for d in space.dimensions}
    assert (names["micro"], names["acc"], names["ac"]) == ((1, 2, 4, 8), (1, 2, 4, 8), ("none", "full"))
    assert "fuse_grad_size_in_MB" in names
    assert not any("micro" in prior.changes for prior in first_strategies(space)), "no rule of thumb"
    named = [prior.changes for prior in own_strategies(space, {}, (), ())]
    assert named == [{"micro": 8, "acc": 1}, {"micro": 1, "acc": 8}, {"ac": "full"}]
    end = (Changes({"micro": 8, "acc": 1}),)
    inward = [prior.changes for prior in own_strategies(space, {}, end, end)]
    assert {"micro": 4, "acc": 2} in inward


def test_a_wish_for_one_is_completed_by_what_is_required() -> None:
    composer = make_own_space().composer
    assert composer.compose({"micro": 4}) == {"micro": 4, "acc": 2}
    assert composer.compose({"acc": 8}) == {"micro": 1, "acc": 8}
    assert composer.compose({"micro": 4, "acc": 8}) is None, "both were wished for, and they break it"
    assert composer.compose({"ac": "full"}) == {"ac": "full"}
    assert make_own_space(require=("micro < nodes * world_size",)).composer.compose({"micro": 8}) is None


def test_knobs_that_a_requirement_ties_go_back_together() -> None:
    composer = make_own_space().composer
    units = list_units(composer, {"micro": 4, "acc": 2, "ac": "full", "num_threads": 2})
    assert {frozenset(unit) for unit in units} == {
        frozenset({"micro", "acc"}), frozenset({"ac"}), frozenset({"num_threads"}),
    }  # fmt: skip


def test_frozen_and_restricted_own_knobs_are_left_alone() -> None:
    frozen = make_own_space(freeze=("acc",)).composer
    assert frozen.compose({"micro": 4}) is None, "what would complete it is frozen"
    space = make_own_space(knobs=("num_threads",))
    assert {"micro", "num_threads"} <= {d.knob.name for d in space.dimensions}, "naming it searches it"


def test_nothing_beyond_what_ran_out_of_memory_is_tried() -> None:
    composer = replace(make_own_space(require=()).composer, out_of_memory=(Changes({"micro": 4}),))
    assert composer.compose({"micro": 8}) is None
    assert composer.compose({"micro": 1}) == {"micro": 1}
    assert composer.compose({"micro": 8, "ac": "full"}) is not None, "less memory by another choice"


def test_undeclared_own_knobs_stand_on_the_convergence_rung() -> None:
    space = make_own_space("--ac=none,full", require=())
    assert "ac" in {d.knob.name for d in space.higher}
    tried = rung_strategies(space, Effect.CONVERGENCE, {})
    assert tried[0].changes == {"ac": "full"}


def test_a_requirement_that_todays_command_breaks_on_these_nodes_drops_its_knobs_with_the_reason() -> None:
    space = make_own_space(require=("micro * acc == world_size",))
    dropped = {entry.knob: entry.reason for entry in space.dropped}
    assert "breaks 'micro * acc == world_size' on these nodes" in dropped["micro"]
    assert "acc" in dropped
    assert space.composer.compose({"num_threads": 2}) == {"num_threads": 2}


def test_a_choice_goes_on_top_of_the_best_first_and_by_itself_where_it_failed_there() -> None:
    workload = Workload(
        command=("t.py", "--at", "eager", "--keep", "8"), own=("--at=eager,flash:exact", "--keep=2,4,8:exact")
    )
    space = make_space(make_job(JobSpec(workload=workload)))
    best = Changes({"num_threads": 2})
    on_top = [Changes({**best, "at": "flash"}), Changes({**best, "keep": 2})]

    assert [prior.changes for prior in own_strategies(space, best, (), ())] == on_top
    assert own_strategies(space, best, on_top, ()) == (), "each value has run"
    failed = [prior.changes for prior in own_strategies(space, best, on_top, on_top)]
    assert failed == [{"at": "flash"}, {**best, "keep": 4}]
    assert {"at": "flash"} not in [
        p.changes for p in own_strategies(space, best, [*on_top, *failed], [*on_top, *failed])
    ]
