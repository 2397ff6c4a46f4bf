"""Peers: the ranks of a running job as discovery sees them; they tell each other things, and send data to be timed."""
