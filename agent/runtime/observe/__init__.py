"""What a training is seen to do: its steps, times, samples, memory, formats and models."""
