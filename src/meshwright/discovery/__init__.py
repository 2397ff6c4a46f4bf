"""From what clusters say about themselves to a system: topology files, read, merged and made regular."""
