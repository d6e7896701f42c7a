"""Splits: the selection of GPUs for training or inference, and the edit of the inventory.

Everything here is pure; `kit.commands.split` does the input and output.
"""
