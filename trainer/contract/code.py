"""The data set with the code of a job: one archive. A module of the launcher's program."""

PREFIX = "code-"
# The prefix of the data set's name; the digits of its version follow.
DIGITS = 12
# Number of digits of the archive's SHA-256 in the name.
ARCHIVE = "code.pax"
# A tar archive. It is not named .tar, as the store would unpack it and lose modes and links.
WORKSPACE = "/workspace"
# The folder for the unpacked code, also the working folder of NVIDIA's and PyTorch's images.
UNPACKED = ".kit-code"
# The file in that folder with the SHA-256 of the unpacked archive.


def code_name(sha256: str) -> str:
    """Return the name of the data set with an archive, which depends on its content."""
    return f"{PREFIX}{sha256[:DIGITS]}"
