"""What every engine shares: a rank's role in a plan, the checks between ranks, and their start and end."""
