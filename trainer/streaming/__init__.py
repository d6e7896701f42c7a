"""Images in tar shards that need not fit a disk: their index, their files, their order."""
