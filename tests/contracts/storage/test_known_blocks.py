"""Measured blocks are read once, and whatever still changes in them is seen all the same."""

from datetime import timedelta

import pytest

from advisor.protocol.measured.trials import Block, BlockState
from advisor.storage import Database
from advisor.storage.repositories.known_blocks import KnownBlocks, Mark
from tests.contracts.storage.test_storage import NOW, add_running_session, make_block
from tests.unit.services.scripted_tuning import ScriptedTuning, make_result


def measure(database: Database, *numbers: int, step_time_s: float = 0.1) -> None:
    """Issue blocks and accept their results."""
    result = make_result(step_time_s)
    with database.begin() as work:
        for number in numbers:
            block = make_block(f"b{number}", number)
            work.blocks.issue("j1", block)
            assert work.blocks.accept(block, 1, result, ScriptedTuning().summarise(result), "sha", NOW)


def read(database: Database) -> tuple[Block, ...]:
    with database.read() as work:
        return work.blocks.of_job("j1")


@pytest.fixture
def measured(database: Database) -> Database:
    """A database with a job of three measured blocks."""
    with database.begin() as work:
        add_running_session(work)
    measure(database, 0, 1, 2)
    return database


def test_measured_blocks_are_read_once_and_new_ones_are_added(measured: Database) -> None:
    before = read(measured)
    measure(measured, 3)
    after = read(measured)
    assert [block.id for block in after] == ["b0", "b1", "b2", "b3"]
    assert all(now is then for now, then in zip(after, before, strict=False))
    assert after[3].result == make_result()


def test_what_changes_in_a_measured_block_is_seen_by_who_has_read_it(measured: Database) -> None:
    read(measured)
    with measured.begin() as work:
        work.blocks.set_telemetry(["b1"], 0.5, ())
        # In the transaction that changes it as well.
        assert work.blocks.of_job("j1")[1].utilisation == 0.5
    _, observed, _ = read(measured)
    assert observed.utilisation == 0.5
    assert observed.result == make_result()


def test_block_that_is_being_measured_is_read_again_until_it_is_given_up(measured: Database) -> None:
    with measured.begin() as work:
        work.blocks.issue("j1", make_block("b3", 3))
    assert read(measured)[3].state is BlockState.ISSUED
    with measured.begin() as work:
        work.blocks.void("b3", "Given up.", NOW)
    assert (read(measured)[3].state, read(measured)[3].note) == (BlockState.VOID, "Given up.")


def test_what_was_seen_in_a_transaction_that_failed_is_not_remembered(measured: Database) -> None:
    with measured.begin() as work:
        work.blocks.issue("j1", make_block("b3", 3))

    def accept(step_time_s: float, *, fails: bool) -> None:
        result = make_result(step_time_s)
        with measured.begin() as work:
            work.blocks.accept(make_block("b3", 3), 1, result, None, "sha", NOW)
            work.blocks.of_job("j1")
            if fails:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        accept(0.7, fails=True)
    accept(0.2, fails=False)
    assert read(measured)[3].result == make_result(0.2)


def test_many_blocks_are_read_in_their_order(measured: Database) -> None:
    measure(measured, *range(3, 1203))
    assert [block.ordinal for block in read(measured)] == list(range(1203))


def test_blocks_that_were_not_asked_for_longest_are_forgotten_first() -> None:
    known = KnownBlocks(most_steps=1220)
    mark = Mark("done", "", NOW, None, "[]")
    blocks = [make_block(f"b{number}", number) for number in range(4)]
    for block in blocks[:3]:
        known.keep(block, mark)
    assert known.find({"b0": mark}) == {"b0": blocks[0]}
    known.keep(blocks[3], mark)
    everything = {block.id: mark for block in blocks}
    assert set(known.find(everything)) == {"b0", "b2", "b3"}
    later = Mark("done", "", NOW + timedelta(1), None, "[]")
    assert known.find({"b0": later}) == {}
