"""Commands for the people who run servers and nodes, and sign in to them."""
