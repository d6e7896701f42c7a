"""Data sets: where their files are, what is read from them, and which rank works on what."""
