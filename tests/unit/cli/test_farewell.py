"""What a tuning of this machine says when it is interrupted."""

from advisor.cli.tuning.tune_here import say_farewell
from advisor.protocol.asked.jobs import JobState

from .fake_server import FakeServer


def test_interrupt_after_the_end_does_not_send_to_measure_everything_again() -> None:
    server = FakeServer()
    going, done, failed = (
        say_farewell(server.add_job(state.value, state))
        for state in (JobState.RUNNING, JobState.FINISHED, JobState.FAILED)
    )
    assert "run the same command again" in going
    assert "same command" not in done + failed
    assert "advisor advice finished" in done
    assert "advisor show failed" in failed
