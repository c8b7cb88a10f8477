"""Sessions and their races: who measures, what is measured next, and results that are accepted exactly once."""
