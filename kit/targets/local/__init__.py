"""The target of this machine, without Docker: an agent for each host of the plan."""
