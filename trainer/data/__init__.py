"""Data sets: their files, their samples, and their division among ranks."""
