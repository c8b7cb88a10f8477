"""Commands for whoever runs servers and nodes, and signs in to them."""
