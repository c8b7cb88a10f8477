"""What is measured once for a launch: gradients, links, noise."""
