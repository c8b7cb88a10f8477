"""A SQLite file: who may have it, and how transactions are queued and committed together."""
