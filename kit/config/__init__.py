"""Parsing and validation of the user's files into `kit.model`. Each mistake has its line."""
