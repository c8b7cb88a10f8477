"""The commands, a module each or for a few that belong together."""
