"""Containers that try what facts cannot show: traffic between the hosts, limits, GPUs, data."""
