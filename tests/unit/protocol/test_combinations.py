"""Combinations of own knobs that a job cannot have, or has far too many of: told before anything starts."""

import pytest
from pydantic import ValidationError

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.knobs.combinations import say_too_many
from advisor.protocol.training.key_files import fit_to_file
from advisor.protocol.training.workload import Workload

COMMAND = ("torchrun", "t.py", "--micro", "2", "--acc", "4", "--ac", "none")


def specify(*own: str, require: tuple[str, ...] = ()) -> JobSpec:
    return JobSpec(workload=Workload(command=COMMAND, own=own, require=require))


@pytest.mark.parametrize(
    ("own", "require", "told"),
    [
        (("--micro=2,3",), ("micro % 2 == 0",), "only today's fulfil it (micro 2)"),
        (("--micro=1,2,3", "--acc=3,4"), ("micro * acc == 8",), "(micro 2, acc 4)"),
        (("--micro=2",), (), "micro is 2 today, and no other value is named"),
        (("--ac=none",), (), "ac is none today"),
        (("--micro=3,5", "--ac=none,full"), ("micro == 2",), "name others, or correct it"),
    ],
)
def test_what_leaves_only_todays_combination_is_refused(
    own: tuple[str, ...], require: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        specify(*own, require=require)
    assert told in str(refused.value)


def test_requirements_over_facts_are_left_to_the_first_launch() -> None:
    assert specify("--micro=2,3", require=("micro < world_size",)).workload.own
    assert specify("--micro=1,2,4", "--acc=2,4,8", require=("micro * acc == 8",)).workload.own


def test_far_more_combinations_than_a_budget_holds_are_told_with_what_to_name_instead() -> None:
    workload = specify("--micro=1..9", "--acc=1..9").workload
    told = say_too_many(workload, 300.0, 24)
    assert "80 combinations of micro, acc" in told
    assert "hold about 14" in told
    assert "Name 3 or so of each" in told
    assert "--minutes 22 --trials 80" in told
    assert say_too_many(workload, 3600.0, 100) == ""
    assert say_too_many(specify("--micro=1,2,4").workload, 120.0, 24) == ""
    many = specify(
        *(f"--{name}=1..9:exact" for name in ("micro", "acc")), "x=1..9", "y=1..9", "z=1..9"
    ).workload
    frozen = specify("--micro=1,2,4,8,16", "--acc=1,2,4", "--ac=none,full").workload
    assert "29 combinations of micro, acc, ac," in say_too_many(frozen, 150.0, 24)
    assert "14 combinations of micro, acc," in say_too_many(frozen, 150.0, 24, frozen=["ac"])
    assert "more than 20000 combinations" in say_too_many(many, 300.0, 24)


def test_a_key_of_a_file_takes_values_of_its_own_kind() -> None:
    assert fit_to_file((16, 32), "8", "precision") == (("16", "32"), "8")
    assert fit_to_file(("true", "false"), True, "on") == (("true", "false"), "true")
    assert fit_to_file((1, 2.5), 4, "batch") == ((1, 2.5), 4)
    with pytest.raises(ValueError, match="batch is 4, a number, and 1, fast are not all numbers"):
        fit_to_file(("1", "fast"), 4, "batch")
    with pytest.raises(ValueError, match="compile is false, a switch, which 'maybe' is not: true,false"):
        fit_to_file(("true", "maybe"), False, "compile")
