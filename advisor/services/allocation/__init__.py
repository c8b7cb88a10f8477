"""Who gets which agents: pure functions over plain values, with spans of time in place of moments."""
