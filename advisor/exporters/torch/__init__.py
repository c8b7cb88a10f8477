"""Exports for plain PyTorch: what a script does under the strategy, and the two files that make it do so."""
