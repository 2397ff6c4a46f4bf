"""Exports, and interpreters of the formats that describe whole programs."""
