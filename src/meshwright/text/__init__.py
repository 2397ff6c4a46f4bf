"""What users write: names and counts, units, YAML files; and how files are written."""
