"""IT³ for images: networks, data, corruptions, and the methods that the field compares with."""

import os

__version__ = "0.1.0"

# albumentations asks PyPI for a newer version whenever it is imported; we don't use the network.
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")
