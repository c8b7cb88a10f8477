"""Exports for PaddlePaddle: a prototxt and a Python file of its DistributedStrategy."""
