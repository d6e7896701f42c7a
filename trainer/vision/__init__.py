"""All code that imports torchvision: the import takes seconds, which only such jobs spend."""
