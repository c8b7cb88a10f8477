"""A SQLite file: who may have it, and copies of it."""
