"""All code that imports torchvision: the import takes seconds, and other jobs skip it."""
