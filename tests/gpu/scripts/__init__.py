"""Trainings that the checks of a GPU start (`make gpu-check`): ordinary scripts that write down what they see."""
