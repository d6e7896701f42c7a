"""The Swarm: what is seen of it, what is to be done about it, and the doing."""
