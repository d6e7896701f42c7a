"""Swarm: stacks, by the managers' Docker."""
