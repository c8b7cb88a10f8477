"""What a server has: jobs, agents, knobs, tokens."""
