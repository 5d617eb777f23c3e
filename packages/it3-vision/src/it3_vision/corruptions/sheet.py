"""All corruptions of one picture on one sheet: `python -m it3_vision.corruptions.sheet OUT.jpg`.

Without a second argument, an image file, the picture is a street drawn here, under this package's
licence. docs/corruptions.jpg is made so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from it3_core import IT3Error
from it3_vision.corruptions.applying import CORRUPTIONS, EXTRA, corrupt
from it3_vision.corruptions.kinds import Benchmark, Images

__all__ = ["contact_sheet", "specimen"]

_LABEL = 150
_FINE = ("pixelate", "jpeg_compression")  # what these do is lost when a picture is made smaller
_GAP = 4


def contact_sheet(
    image: Images,
    names: Sequence[str] = CORRUPTIONS + EXTRA,
    *,
    benchmark: Benchmark = "imagenet",
    shown: int = 112,
) -> Images:
    """A row for each corruption: its name, the image, and the five severities.

    Of pixelate and JPEG it shows the middle in full size, where the image is larger than shown.

    Args:
        image: uint8, RGB; corrupted at its own size.
        names: which corruptions.
        benchmark: whose constants.
        shown: the longer side of an image on the sheet, in pixels.

    Example:
        >>> contact_sheet(specimen(64), ["fog", "snow"], benchmark="cifar", shown=64).shape
        (160, 562, 3)
    """
    height, width = image.shape[:2]
    scale = shown / max(height, width)
    wide, high = max(1, round(width * scale)), max(1, round(height * scale))
    head = 20
    sheet = np.full(
        (head + len(names) * (high + _GAP) + _GAP, _LABEL + 6 * (wide + _GAP) + _GAP, 3), 255, "u1"
    )
    for column, title in enumerate(["clean", "1", "2", "3", "4", "5"]):
        _write(sheet, title, _LABEL + column * (wide + _GAP), 14)
    for row, name in enumerate(names):
        top = head + row * (high + _GAP)
        _write(sheet, name, 6, top + high // 2)
        middle = scale < 1 and name in _FINE
        if middle:
            _write(sheet, "(middle, full size)", 6, top + high // 2 + 16)
        for severity in range(6):
            made = corrupt(image, name, severity, benchmark=benchmark) if severity else image
            way = Image.Resampling.LANCZOS if scale < 1 else Image.Resampling.NEAREST
            y, x = (height - high) // 2, (width - wide) // 2
            left = _LABEL + severity * (wide + _GAP)
            sheet[top : top + high, left : left + wide] = (
                made[y : y + high, x : x + wide]
                if middle
                else Image.fromarray(made).resize((wide, high), way)
            )
    return sheet


def specimen(size: int = 224) -> Images:
    """A picture to try corruptions on: a house, a tree, a car and clouds.

    Example:
        >>> specimen(32).shape
        (32, 32, 3)
    """
    side = 896  # drawn large and made smaller, so that edges are smooth
    random = np.random.default_rng(6)
    down = np.linspace(0, 1, side)[:, None, None]
    picture = (np.array([86, 146, 214]) * (1 - down) + np.array([214, 228, 236]) * down) * np.ones(
        (1, side, 1)
    )
    canvas: Images = picture.astype(np.uint8)
    for x, y, radius in ((150, 130, 60), (220, 110, 75), (300, 140, 55), (700, 90, 45)):
        _disc(canvas, x, y, radius, (248, 250, 252))
    _disc(canvas, 790, 120, 58, (255, 222, 110))
    hill = np.array(
        [[0, 560], [180, 470], [420, 540], [640, 450], [896, 560], [896, 896], [0, 896]]
    )
    cv2.fillPoly(canvas, [hill.astype(np.int32)], (104, 142, 84), cv2.LINE_AA)
    for _ in range(2600):  # grass
        x, y = int(random.uniform(0, side)), int(random.uniform(570, side))
        green = int(random.uniform(90, 165))
        cv2.line(canvas, (x, y), (x + int(random.normal(0, 5)), y - 14), (green - 30, green, 60), 2)
    _house(canvas)
    cv2.rectangle(canvas, (655, 480), (690, 700), (96, 68, 46), -1)
    for _ in range(420):  # leaves
        x, y = random.normal((672, 400), (62, 62))
        green = int(random.uniform(70, 150))
        _disc(canvas, x, y, random.uniform(8, 20), (green // 3, green, 44))
    cv2.rectangle(canvas, (0, 740), (side, 860), (92, 92, 98), -1)
    for x in range(20, side, 140):
        cv2.rectangle(canvas, (x, 796), (x + 70, 804), (235, 230, 210), -1)
    _car(canvas)
    return np.array(Image.fromarray(canvas).resize((size, size), Image.Resampling.LANCZOS))


def _house(canvas: Images) -> None:
    cv2.rectangle(canvas, (130, 430), (500, 720), (206, 178, 142), -1)
    for y in range(444, 720, 14):  # rows of bricks
        cv2.line(canvas, (130, y), (500, y), (188, 156, 120), 2)
    roof = np.array([[95, 440], [315, 270], [535, 440]], dtype=np.int32)
    cv2.fillPoly(canvas, [roof], (158, 62, 48), cv2.LINE_AA)
    for x in (175, 385):
        cv2.rectangle(canvas, (x, 490), (x + 76, 580), (246, 246, 240), -1)
        cv2.rectangle(canvas, (x + 7, 497), (x + 69, 573), (64, 92, 124), -1)
        cv2.line(canvas, (x + 38, 490), (x + 38, 580), (246, 246, 240), 6)
        cv2.line(canvas, (x, 535), (x + 76, 535), (246, 246, 240), 6)
    cv2.rectangle(canvas, (280, 570), (350, 720), (92, 58, 40), -1)
    _disc(canvas, 338, 650, 6, (230, 200, 90))


def _car(canvas: Images) -> None:
    top = np.array([[560, 720], [600, 650], [720, 650], [770, 720]], dtype=np.int32)
    cv2.fillPoly(canvas, [top], (40, 70, 168), cv2.LINE_AA)
    glass = np.array([[585, 715], [612, 664], [708, 664], [744, 715]], dtype=np.int32)
    cv2.fillPoly(canvas, [glass], (186, 214, 230), cv2.LINE_AA)
    cv2.rectangle(canvas, (510, 715), (830, 785), (40, 70, 168), -1)
    for x in (580, 760):
        _disc(canvas, x, 788, 36, (28, 28, 30))
        _disc(canvas, x, 788, 17, (186, 186, 190))
    _disc(canvas, 822, 735, 10, (255, 240, 180))


def _disc(canvas: Images, x: float, y: float, radius: float, colour: tuple[int, int, int]) -> None:
    cv2.circle(canvas, (round(x), round(y)), round(radius), colour, -1, cv2.LINE_AA)


def _write(sheet: Images, text: str, x: int, y: int) -> None:
    cv2.putText(sheet, text, (x, y), cv2.FONT_HERSHEY_SIMPLEX, 0.42, (0, 0, 0), 1, cv2.LINE_AA)


def main(arguments: Sequence[str]) -> int:
    """Draw a sheet into the file that is named first, of the image that is named second."""
    if not 1 <= len(arguments) <= 2 or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    try:
        image = specimen()
        if len(arguments) == 2:
            with Image.open(arguments[1]) as file:
                image = np.asarray(file.convert("RGB"))
        # Noise makes a PNG of this four times as large.
        sheet = Image.fromarray(contact_sheet(image))
        sheet.save(Path(arguments[0]), quality=75, optimize=True, progressive=True)
    except (OSError, ValueError, IT3Error) as problem:  # the second: of an unknown suffix
        print(f"sheet: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
