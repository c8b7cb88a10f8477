"""`python -m tests.releases`, in a checkout."""

import sys

from tests.releases.command import main

sys.exit(main())
