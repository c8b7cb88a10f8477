"""`python -m advisor`: the same commands as `advisor`, for environments without its script on the path."""

import sys

from advisor.cli import main

sys.exit(main())
