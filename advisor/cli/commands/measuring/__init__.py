"""Commands that measure, and that train under what was measured."""
