"""The names in a folder of checkpoints. Standard library only: the endpoint has no torch."""

STATE, MANIFEST, COMPLETE = "state.pt", "manifest.json", "COMPLETE"
NAME = r"step-\d{8,}"
"""The name of a checkpoint's folder, as a regular expression; names sort like steps."""


def folder_name(step: int) -> str:
    """Name the folder of a checkpoint."""
    return f"step-{step:08d}"


def parts_folder(step: int) -> str:
    """Name the folder of the ranks' own parts of a checkpoint."""
    return f"ranks-{step:08d}"


def part_name(rank: int) -> str:
    """Name the file of one rank's part."""
    return f"rank-{rank:05d}.pt"
