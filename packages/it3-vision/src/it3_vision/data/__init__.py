"""Images from the layouts people have them in, as arrays; and from arrays to tensors."""

from it3_vision.data.images import BadImage, Preprocessing, fit_to, read_image
from it3_vision.data.opening import open_images
from it3_vision.data.sets import ImageSet

__all__ = ["BadImage", "ImageSet", "Preprocessing", "fit_to", "open_images", "read_image"]
