"""Who decides which strategy is in force: the agent of a trial, or what a real training was started with."""
