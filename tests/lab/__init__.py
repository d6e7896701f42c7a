"""The lab: a real Docker Swarm on one machine, each node a container with an engine of its own."""
