"""The targets: this machine, Compose on each host, Swarm stacks, Kubernetes.

Each has the same modules: `addressing` (how parts reach each other, pure), `lower` (the parts in
the target's terms, pure), `observe` (the current state), `decide` (the steps to the wanted state,
pure), `execute` (the steps) and `logs`. Targets do not import each other.
"""
