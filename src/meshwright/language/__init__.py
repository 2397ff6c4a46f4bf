"""Reduction programs: their text, three independent semantics, and their synthesis."""
