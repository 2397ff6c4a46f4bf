"""What every engine shares: a rank's part in a plan, the checks between ranks, and their start and end."""
