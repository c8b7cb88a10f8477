"""One session on this node, from its assignment to its outcome: the talk with the ranks, beats, log, reports."""
