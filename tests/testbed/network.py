"""The mark of tests that need a testbed: where none can be built they are skipped, with the reason."""

import pytest

from advisor.local.testbed import unavailable_because

_REASON = unavailable_because()

requires_testbed = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))
