"""Tuning on the nodes that an engine gives: who each one is, how they find node 0, and how they end together."""
