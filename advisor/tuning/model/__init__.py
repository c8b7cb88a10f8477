"""The cost model: the step time of any strategy from the probe and what was measured."""
