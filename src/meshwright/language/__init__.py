"""Reduction programs: their text, their meaning three times over, and their synthesis."""
