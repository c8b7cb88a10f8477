"""Which rank hangs, and which only waits."""

import pytest

from agent.guard.progress import Progress
from agent.runtime.link import beat


class Clock:
    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    monkeypatch.setattr(beat, "SHORTEST_INTERVAL_S", 0.0)
    return [beat.BeatWriter(str(tmp_path), rank) for rank in range(2)]


@pytest.fixture
def progress(tmp_path, clock):
    return Progress(tmp_path, 10.0, clock)


def test_the_step_is_exact_however_soon_a_rank_dies(tmp_path, progress):
    writer = beat.BeatWriter(str(tmp_path), 0)
    for step in range(51):
        writer.write(step, beat.TRAINING)

    progress.update()

    assert progress.count_steps() == 50


def test_a_beat_without_a_page_is_written_all_the_same(tmp_path, progress, monkeypatch):
    monkeypatch.setattr(beat.mmap, "mmap", lambda *_: (_ for _ in ()).throw(OSError()))
    writer = beat.BeatWriter(str(tmp_path), 0)
    writer.write(7, beat.TRAINING)

    progress.update()

    assert progress.count_steps() == 7


def test_nothing_hangs_before_the_first_step(progress, ranks, clock):
    ranks[0].write(0, beat.STARTING)
    progress.update()
    clock.now_s = 100
    progress.update()
    assert not progress.has_begun()
    assert progress.find_hang(False) is None


def test_rank_behind_the_others_is_the_one_that_hangs(progress, ranks, clock):
    ranks[0].write(8, beat.TIMING)
    ranks[1].write(7, beat.TIMING)
    progress.update()
    clock.now_s = 9
    progress.update()
    assert progress.find_hang(False) is None
    clock.now_s = 11
    progress.update()
    hang = progress.find_hang(False)
    assert hang.rank == 1
    assert "step 7" in hang.sentence
    assert hang.sentence.endswith("so the session was ended.")


def test_a_step_is_progress(progress, ranks, clock):
    for step in range(1, 5):
        clock.now_s += 9
        for rank in ranks:
            rank.write(step, beat.TIMING)
        progress.update()
    assert progress.find_hang(False) is None
    assert progress.count_steps() == 4


def test_rank_that_waits_for_another_does_not_hang(progress, ranks, clock):
    ranks[0].write(9, beat.WAITING)
    ranks[1].write(9, beat.TIMING)
    progress.update()
    clock.now_s = 11
    ranks[0].write(9, beat.WAITING)
    progress.update()
    assert progress.find_hang(False).rank == 1


@pytest.mark.parametrize("phase", [beat.SWITCHING, beat.CALIBRATING])
def test_agreeing_with_the_others_is_progress_where_no_step_is_made(progress, ranks, clock, phase):
    for exchanges in range(65534, 65540):  # counted in 16 bits
        clock.now_s += 9
        for rank in ranks:
            rank.write(7, phase, exchanges)
        progress.update()
    assert progress.find_hang(False) is None
    clock.now_s += 11
    ranks[1].write(7, phase, 65540)
    progress.update()
    assert progress.find_hang(False).rank == 0


def test_waiting_for_an_instruction_is_no_hang_while_one_is_due(progress, ranks, clock):
    for rank in ranks:
        rank.write(3, beat.WAITING)
    progress.update()
    clock.now_s = 11
    assert progress.find_hang(True) is None
    assert progress.find_hang(False) is not None


def test_foreign_file_is_no_beat(progress, tmp_path):
    (tmp_path / "beat.7").write_bytes(b"x" * 32)
    progress.update()
    assert progress.ranks == 0
    assert progress.count_steps() is None


def test_a_rank_that_compiles_may_be_silent_for_longer(progress, ranks, clock):
    for rank in ranks:
        rank.write(8, beat.COMPILING)
    progress.update()
    clock.now_s = 49
    assert not progress.is_stalling()
    clock.now_s = 99
    assert progress.find_hang(False) is None
    clock.now_s = 101
    assert "all in step 8" in progress.find_hang(False).sentence
