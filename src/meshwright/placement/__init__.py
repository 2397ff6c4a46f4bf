"""Where axes go: parallelism matrices, groups, and the hierarchies that reductions see."""
