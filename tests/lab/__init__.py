"""The lab: a real Docker Swarm on one machine; each node is a container with its own engine."""
