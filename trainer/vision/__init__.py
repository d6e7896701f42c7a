"""All that imports torchvision: on each process it takes seconds, which only such jobs spend."""
