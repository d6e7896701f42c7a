"""What runs inside the container: the launcher, the training loop and its checkpoints.

It imports torch and never `kit`. The two meet in the job file and in the environment variables
that `trainer.launch` lists.
"""
