"""What a trial may not do to its node, and what ends it: users, mounts, the shim, its processes, its log, the disk."""
