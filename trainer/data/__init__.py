"""Data sets: their files, their samples, and the samples of each rank."""
