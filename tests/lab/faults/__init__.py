"""Faults of hosts, made on purpose in the lab, and what `kit doctor` says about them."""
