"""Trials: a plan's reductions on made-up data, checked and timed; one runner per engine, each in its own file."""
