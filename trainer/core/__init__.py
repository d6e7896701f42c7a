"""The training itself: the job, the run, its steps and epochs, and what is told of them."""
