"""The queue, which assigns the GPUs of the pool to jobs. `decide` is pure."""
