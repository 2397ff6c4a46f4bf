"""Measuring: programs on real process groups, what the links really do, and how good the predictions are."""
