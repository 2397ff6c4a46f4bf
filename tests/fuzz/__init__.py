"""Fuzzing: whatever text, file or value comes in ends in a result or a MeshwrightError, in time and memory."""
