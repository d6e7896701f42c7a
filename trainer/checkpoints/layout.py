"""The names in a folder of checkpoints. Standard library only: the endpoint has no torch."""

STATE, MANIFEST, COMPLETE = "state.pt", "manifest.json", "COMPLETE"
NAME = r"step-\d{8,}"
"""Of a checkpoint's folder, as a regular expression; names sort as steps do."""


def folder_name(step: int) -> str:
    """Name the folder of a checkpoint."""
    return f"step-{step:08d}"
