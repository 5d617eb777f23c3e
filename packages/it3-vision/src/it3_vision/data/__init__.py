"""Images from the layouts people have them in, as arrays; and from arrays to tensors."""

from it3_vision.data.images import MOST_PIXELS, BadImage, fit_to, read_image
from it3_vision.data.opening import corruptions, open_images, severities
from it3_vision.data.sets import ImageSet
from it3_vision.data.tensors import Preparation

__all__ = [
    "MOST_PIXELS",
    "BadImage",
    "ImageSet",
    "Preparation",
    "corruptions",
    "fit_to",
    "open_images",
    "read_image",
    "severities",
]
