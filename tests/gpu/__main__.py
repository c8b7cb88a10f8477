"""`python -m tests.gpu`, in a checkout."""

import sys

from tests.gpu.command import main

sys.exit(main())
