"""Exports for the frameworks that build the model's replicas themselves: each knob in the words of that framework."""
