"""The node: starts, guards and measures training processes."""
