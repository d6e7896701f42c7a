"""Checks of the trainer on a GPU, in one command: see __main__.py."""
