"""The Swarm target: stacks, through the managers' Docker."""
