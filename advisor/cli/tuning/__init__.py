"""A job that a command asks for, from its description to its answer: here or on a server."""
