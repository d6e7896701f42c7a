"""The inference server of the trainer's image; start reading in `__main__.py`."""
