"""The queue: which job has which GPUs of the pool now. `decide` is pure."""
