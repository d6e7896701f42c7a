"""Checkpoints: their format on disk, the thread that writes them, the choice of the newest."""
