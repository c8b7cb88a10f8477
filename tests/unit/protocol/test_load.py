"""A machine that others use is told with how many want it; what has ended, and what is our own, is nobody else's."""

import pytest

from advisor.protocol.nodes.load import list_running, read_load, say_load


@pytest.mark.parametrize(
    ("load", "own", "others"),
    [
        ("30.40 28.11 9.02 33/230 4711", 0, 30),
        ("30.40 28.11 9.02 33/230 4711", 4, 26),
        ("3.90 3.00 2.00 5/230 4711", 2, 2),
        ("3.90 3.00 2.00 5/230 4711", 3, 0),
        ("30.40 28.11 9.02 1/230 4711", 0, 0),
        ("0.40 0.11 0.02 33/230 4711", 0, 0),
        ("", 0, 0),
    ],
)
def test_others_are_named_where_the_last_minute_and_this_moment_show_as_many_as_processors(
    load: str, own: int, others: int
) -> None:
    sentence = say_load(load, cores=2, own=own)
    assert (
        f"on 2 processors: {others} other processes want them, so that starts" in sentence
        if others
        else not sentence
    )


def test_this_machines_load_is_read_as_it_is_told() -> None:
    assert say_load(read_load(), cores=10_000) == ""
    assert len(read_load().split()) == 5


def test_the_load_is_told_with_the_names_of_what_runs() -> None:
    running = ["cc1plus (12)", "python3 (4)", "ld", "make", "sh"]

    sentence = say_load("30.40 28.11 9.02 33/230 4711", 2, running=running)

    assert sentence.startswith(
        "Load 30 on 2 processors: 30 other processes want them (now cc1plus (12), python3 (4), "
    )
    assert "sh)" not in sentence


def test_running_processes_are_named_without_this_one() -> None:
    assert all(name for name in list_running())
