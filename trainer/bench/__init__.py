"""Measurements of hosts, links and steps, for `kit bench`."""
