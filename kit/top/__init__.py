"""`kit top`: the GPUs of all hosts, with the ranks that hold them."""
