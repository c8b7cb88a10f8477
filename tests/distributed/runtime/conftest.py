"""On cards each failure is told at once: they are lent, and may be taken away before the last test."""

import pytest

from .fake_agent import DEVICE


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print what a test failed of."""
    if DEVICE == "cuda" and report.failed:
        print(f"\n{report.nodeid}:\n{report.longreprtext[-4000:]}", flush=True)
