"""Areas without data: found, and filled with what lies beside them."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import distance_transform_edt

from it3_vision.data.images import Pixels

__all__ = ["find_no_data", "mirrored"]

_WHITE = 250  # and above, in every channel: JPEGs don't keep a plain 255
_RIM = 30  # below white: how grey compression makes an area's rim
_LEAST = 256  # pixels of an area at the border
_HUGE = 0.05  # of the image: no roof is that large, so it need not touch the border
_OPEN = 5  # pixels: the width below which things are cut from an area


def find_no_data(
    image: Pixels, white: int = _WHITE, declared: int | None = None
) -> NDArray[np.bool_]:
    """Where an image has no data: white or black areas that reach its border, or are huge.

    A white roof, or a line of white cars, is smaller or lies inside, and stays. Black is exactly
    that: shadows and water are nearly so. What the file declares to be no data is none anywhere.

    Args:
        image: (H, W, 3).
        white: every channel is at least this.
        declared: every channel of a pixel without data is this, as the image's file says.

    Example:
        >>> import numpy as np
        >>> image = np.full((64, 64, 3), 90, np.uint8)
        >>> image[:, :20] = 255          # a strip at the border
        >>> image[30:40, 40:50] = 255    # a roof
        >>> int(find_no_data(image).sum()) == 64 * 20
        True
    """
    darkest, black = image.min(2), image.max(2) == 0
    found = _areas(darkest >= white, darkest >= white - _RIM) | _areas(black, black)
    if declared is not None:
        found |= (image == declared).all(2)
    return found


def _areas(core: NDArray[np.bool_], rim: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Areas of `core` that reach the border or are huge, with what is `rim` beside them."""
    candidate: NDArray[np.uint8] = core.astype(np.uint8)
    found = np.zeros(candidate.shape, np.bool_)
    if int(candidate.sum()) < _LEAST:
        return found
    kernel = np.ones((_OPEN, _OPEN), np.uint8)
    # Framed by itself: what lies at the border is not eroded from outside.
    framed = cv2.copyMakeBorder(candidate, _OPEN, _OPEN, _OPEN, _OPEN, cv2.BORDER_REPLICATE)
    opened = cv2.morphologyEx(framed, cv2.MORPH_OPEN, kernel)[_OPEN:-_OPEN, _OPEN:-_OPEN]
    number, labels, stats, _ = cv2.connectedComponentsWithStats(np.ascontiguousarray(opened))
    height, width = candidate.shape
    for index in range(1, number):
        left, top, wide, high, area = (int(value) for value in stats[index])
        border = left == 0 or top == 0 or left + wide == width or top + high == height
        if area >= _HUGE * candidate.size or (border and area >= _LEAST):
            found |= labels == index
    # What opening took off corners, and the rim that compression leaves.
    near = cv2.dilate(found.astype(np.uint8), kernel) > 0
    return np.asarray(near & rim, np.bool_)


def mirrored(image: Pixels, known: NDArray[np.bool_]) -> Pixels:
    """The image with its no-data areas filled by a mirror image of what lies beside them.

    So normalisation sees ordinary ground there, and not a colour that no camera ever saw.

    Args:
        image: (H, W, 3).
        known: (H, W), false where there are no data.

    Example:
        >>> import numpy as np
        >>> image = np.arange(6, dtype=np.uint8).reshape(1, 6, 1).repeat(3, 2)
        >>> known = np.array([[True, True, True, True, False, False]])
        >>> mirrored(image, known)[0, :, 0]
        array([0, 1, 2, 3, 2, 1], dtype=uint8)
    """
    if known.all() or not known.any():
        return image
    nearest = distance_transform_edt(~known, return_distances=False, return_indices=True)
    here = np.indices(known.shape)
    reach = np.array(known.shape).reshape(2, 1, 1) - 1
    beyond = np.clip(2 * nearest - here, 0, reach)
    there = known[beyond[0], beyond[1]]
    rows = np.where(there, beyond[0], nearest[0])
    columns = np.where(there, beyond[1], nearest[1])
    return np.asarray(image[rows, columns], np.uint8)
