"""`kit convert`: the files of a cluster for another engine."""
