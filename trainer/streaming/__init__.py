"""Images in tar shards, which need not fit on a disk: their index, their files, their order."""
