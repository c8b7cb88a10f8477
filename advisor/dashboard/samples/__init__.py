"""A made-up job, told in full: the page of components shows it, and tests of the pages start from it."""
