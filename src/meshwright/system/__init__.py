"""The cluster: levels, links and fabrics."""
