"""Containers that test what facts cannot show: traffic between the hosts, limits, GPUs, data."""
