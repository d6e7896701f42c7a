"""Sources of data sets: each fills an empty folder with the files of a new version."""
