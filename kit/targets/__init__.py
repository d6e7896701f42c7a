"""The targets, side by side: this machine, Compose on each host, Swarm stacks.

Each has the same files: `lower` (the plan in its terms, pure), `observe` (what is there), `decide`
(from what is wanted and what is there to steps, pure), `execute` (takes the steps) and `logs`. None
knows another.
"""
