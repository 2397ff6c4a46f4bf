"""What ranks sent, from files that profilers and PyTorch's Flight Recorder write."""
