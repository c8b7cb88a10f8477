"""What no test may leave to the next one: where logs go, and what their lines are about."""

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _forget_logging() -> Iterator[None]:
    structlog.contextvars.clear_contextvars()
    yield
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()
