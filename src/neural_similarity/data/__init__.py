"""Data sets by name, whole-batch augmentation, and loaders that can begin anywhere."""
