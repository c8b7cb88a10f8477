"""A made-up job, told in full: tests of the pages start from it."""
