"""Tests that import torchvision: tests/test_vision.py runs them, in an environment of their own."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torchvision") else ["test_*.py"]
