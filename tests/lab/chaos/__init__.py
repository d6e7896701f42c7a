"""Faults made in a lab during a real training, and what must be true of it all the time."""
