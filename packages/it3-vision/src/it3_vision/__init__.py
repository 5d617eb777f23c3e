"""IT³ for images: the domain package's home, empty so far; see `it3_core`."""

__version__ = "0.1.0"

__all__ = ["__version__"]
