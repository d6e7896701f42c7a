"""How the code of a job travels: a data set of one archive. The launcher's program contains it."""

PREFIX = "code-"
# The beginning of the data set's name; the digits of its version follow.
DIGITS = 12
# Those of the archive's SHA-256 that name a version.
ARCHIVE = "code.pax"
# A tar archive. Not called .tar: the store unpacks those, and this one keeps modes and links.
WORKSPACE = "/workspace"
# Where it is unpacked; NVIDIA's and PyTorch's images work there, too.
UNPACKED = ".kit-code"
# The file in that folder with the SHA-256 of what is unpacked there.


def code_name(sha256: str) -> str:
    """Return the name of the data set with an archive, which is that of its content."""
    return f"{PREFIX}{sha256[:DIGITS]}"
