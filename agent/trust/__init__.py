"""Whom this agent trusts, and how it is known itself: what its operator allows, signed jobs, its own secrets."""
