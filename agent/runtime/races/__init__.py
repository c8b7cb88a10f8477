"""Races: strategies that take turns every few steps inside one live process, until a rule ends it."""
