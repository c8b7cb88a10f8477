"""Fleet Advisor's server, and what server and agents share (`advisor.protocol`)."""

__version__ = "0.1.0"
