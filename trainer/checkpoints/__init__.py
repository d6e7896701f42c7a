"""Checkpoints: their format on disk, a thread that writes them, and which one is the newest."""
