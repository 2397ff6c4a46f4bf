"""Trials: a plan's reductions on made-up data, checked and timed; one file per engine."""
