"""Data sets: a store with immutable versions, a server for it, and an agent on each host."""
