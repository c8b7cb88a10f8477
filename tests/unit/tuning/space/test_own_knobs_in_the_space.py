"""A user's own knobs in the search: completed by requirements, searched beside Fleet's, spared where memory ends."""

from dataclasses import replace
from typing import Any

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.kinds import Effect
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.training.workload import Workload
from advisor.tuning.space.reversion import list_units
from advisor.tuning.space.rules_of_thumb import first_strategies
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
