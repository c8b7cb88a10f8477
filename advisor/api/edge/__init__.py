"""What a request passes before its route, and how an answer may look: encryption, sizes, ids, headers, problems."""
