"""The best plans, and why they are the best."""
