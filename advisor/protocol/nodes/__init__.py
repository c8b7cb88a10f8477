"""Nodes as agents tell of them, and what was found out about them."""
