"""The cluster: levels, links and fabrics, and the built-in presets."""
