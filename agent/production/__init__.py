"""Real trainings under a strategy: `advisor run`. It needs no server, no agent, and nothing but this package."""
