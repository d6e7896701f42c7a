"""The training itself: the job, the run, its steps and epochs, and its output."""
