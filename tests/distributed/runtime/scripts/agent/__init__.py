"""A user's own package that happens to be named like the advisor's."""

NAME = "the user's own agent"
