"""Compose: a project on each host, over SSH, without Swarm."""
