"""Local mode: a server and agents on this machine, for as long as one command needs them."""
