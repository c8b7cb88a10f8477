"""Trainings that the checks of a GPU start (`advisor doctor --gpu`): ordinary scripts that write down what they see."""
