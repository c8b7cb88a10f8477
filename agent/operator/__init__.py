"""What the node's operator decides and asks: configuration, allowance, preview, rehearsal, doctor."""
