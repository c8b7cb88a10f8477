"""Torch's releases: the runtime in each of them, by `make matrix`."""
