"""Exports around the script: launch commands and what the launched ranks read from their environment."""
