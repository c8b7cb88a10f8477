"""A SQLite file: who may have it, and how transactions are committed together."""
