"""`python -m agent` is `advisor-agent`."""

from agent.cli import main

main()
