"""The record of a run, beside the checkpoints, from which `kit report` makes its page."""
