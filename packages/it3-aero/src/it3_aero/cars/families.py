"""The families of cars that can be drawn at random, and how they are drawn."""

from __future__ import annotations

import numpy as np

__all__ = ["FAMILIES", "Parameters", "Range", "draw"]

Parameters = dict[str, float]
Range = tuple[float, float]

FAMILIES: dict[str, dict[str, Range]] = {
    "ahmed": {
        "length": (3.6, 4.6),
        "width": (0.36, 0.4),
        "height": (0.26, 0.31),
        "ride": (0.035, 0.06),
        "nose": (0.05, 0.1),
        "slant": (0.0, 40.0),
        "slant_length": (0.17, 0.25),
    },
    "sedan": {
        "length": (4.3, 4.9),
        "width": (1.74, 1.9),
        "height": (1.38, 1.5),
        "ride": (0.13, 0.2),
        "bonnet": (0.22, 0.27),
        "bonnet_height": (0.62, 0.68),
        "screen": (27.0, 36.0),
        "rear": (22.0, 34.0),
        "boot": (0.1, 0.16),
        "tail_height": (0.66, 0.76),
        "taper": (0.05, 0.2),
        "tumblehome": (0.1, 0.2),
        "section": (4.0, 8.0),
        "smooth": (0.008, 0.025),
        "nose": (0.06, 0.14),
        "diffuser": (0.0, 8.0),
        "wheel_radius": (0.3, 0.34),
        "wheel_width": (0.19, 0.24),
    },
}


def _like(family: str, **different: Range) -> dict[str, Range]:
    return FAMILIES[family] | different


FAMILIES["hatchback"] = _like(
    "sedan",
    length=(3.7, 4.3),
    height=(1.42, 1.56),
    bonnet=(0.2, 0.25),
    screen=(28.0, 38.0),
    rear=(32.0, 60.0),
    boot=(0.0, 0.05),
    tail_height=(0.6, 0.72),
    taper=(0.04, 0.16),
)
FAMILIES["estate"] = _like(
    "sedan",
    length=(4.4, 4.9),
    height=(1.42, 1.55),
    rear=(52.0, 75.0),
    boot=(0.0, 0.03),
    tail_height=(0.58, 0.7),
    taper=(0.03, 0.14),
)
FAMILIES["van"] = _like(
    "sedan",
    length=(4.6, 5.4),
    width=(1.85, 2.0),
    height=(1.8, 2.2),
    ride=(0.16, 0.24),
    bonnet=(0.1, 0.18),
    bonnet_height=(0.5, 0.58),
    screen=(40.0, 58.0),
    rear=(78.0, 88.0),
    boot=(0.0, 0.01),
    tail_height=(0.45, 0.6),
    taper=(0.0, 0.08),
    tumblehome=(0.04, 0.12),
    section=(6.0, 12.0),
    nose=(0.04, 0.1),
    diffuser=(0.0, 3.0),
)
FAMILIES["box"] = _like(
    "van",
    height=(1.7, 2.2),
    bonnet=(0.0, 0.02),
    bonnet_height=(0.85, 0.95),
    screen=(75.0, 88.0),
    tumblehome=(0.0, 0.04),
    section=(10.0, 16.0),
    smooth=(0.001, 0.004),
    nose=(0.005, 0.03),
    taper=(0.0, 0.03),
)
FAMILIES["streamlined"] = _like(
    "sedan",
    length=(4.4, 5.0),
    width=(1.66, 1.84),
    height=(1.15, 1.34),
    ride=(0.1, 0.16),
    bonnet=(0.11, 0.16),
    bonnet_height=(0.6, 0.68),
    screen=(26.0, 31.0),
    rear=(13.5, 18.0),
    boot=(0.0, 0.03),
    tail_height=(0.6, 0.7),
    taper=(0.2, 0.45),
    tumblehome=(0.15, 0.3),
    section=(2.6, 4.0),
    smooth=(0.03, 0.05),
    nose=(0.18, 0.3),
    diffuser=(4.0, 9.0),
    wheel_radius=(0.28, 0.31),
    wheel_width=(0.15, 0.2),
)

_SHARES = {
    "sedan": 0.19,
    "streamlined": 0.2,
    "hatchback": 0.17,
    "estate": 0.14,
    "van": 0.12,
    "ahmed": 0.11,
    "box": 0.07,
}


def draw(seed: int, sample: int) -> tuple[str, Parameters]:
    """Family and parameters of one sample, from the seed and its number alone.

    About one in five is streamlined, so that a low drag is rare.

    Example:
        >>> family, parameters = draw(seed=0, sample=3)
        >>> draw(seed=0, sample=3) == (family, parameters)
        True
        >>> set(parameters) == set(FAMILIES[family])
        True
    """
    random = np.random.default_rng([seed, sample])
    names, shares = list(_SHARES), np.array(list(_SHARES.values()))
    family = str(names[random.choice(len(names), p=shares / shares.sum())])
    even = random.random(len(FAMILIES[family])).tolist()
    parameters = {
        name: round(low + (high - low) * share, 4)
        for share, (name, (low, high)) in zip(even, FAMILIES[family].items(), strict=True)
    }
    if family == "ahmed":  # drawn as shares of the length
        for name in set(parameters) - {"length", "slant"}:
            parameters[name] = round(parameters[name] * parameters["length"], 4)
    return family, parameters
