"""What a request passes before its route, and how an answer may look: connections, sizes, ids, headers, problems."""
