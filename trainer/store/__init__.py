"""Bytes on the disks of this host: files that appear whole or not at all, digests, locks."""
