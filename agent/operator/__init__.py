"""What the node's operator decides and asks: configuration, preview, rehearsal, doctor."""
