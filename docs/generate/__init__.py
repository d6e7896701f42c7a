"""Writes the pages of docs/ that follow from the code, and the pictures of real runs."""
