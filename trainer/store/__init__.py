"""Files on this host's disks: atomic writes, digests, locks."""
