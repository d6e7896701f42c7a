"""What runs in the container. It imports torch, never `kit`: they share job file and variables."""
