"""Strategies that make sense here: knobs and values, rules of thumb, what belongs together."""
