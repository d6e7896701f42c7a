"""Preparation of the hosts: the merge of daemon.json, the order of restarts, their execution."""

from pathlib import Path

MERGE = Path(__file__).with_name("merge.py")
"""The text that `kit render` writes into prepare-daemon.py."""
