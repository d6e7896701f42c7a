"""Multi-node GPU training on plain Docker: one inventory, plain Compose and Swarm files."""

__version__ = "0.2.0"
