"""The target of this machine, without Docker: a torchrun agent for each host of the plan."""
