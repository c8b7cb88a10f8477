"""The user's training: its command, its script, and what the runtime saw of it."""
