"""Splits: which GPUs move between training and inference, and the text that says so.

Everything here is pure; `kit.commands.split` talks to the terminal and to the disk.
"""
