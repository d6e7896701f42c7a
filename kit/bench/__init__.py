"""Measurements of hosts and links: `kit bench`."""
