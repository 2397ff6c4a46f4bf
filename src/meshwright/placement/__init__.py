"""Where the axes go: placements, reduction groups and their hierarchies."""
