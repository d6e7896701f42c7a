"""The data sets of a cluster: the programs on the storage host, the agents, uploads, sizes."""
