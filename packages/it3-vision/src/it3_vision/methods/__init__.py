"""Methods for images that answer a batch at test time, one file each, beside it3-core's."""

from it3_vision.methods.batch_norm import BatchNormStats
from it3_vision.methods.eta import ETA
from it3_vision.methods.fisher import Fisher
from it3_vision.methods.memo import MEMO
from it3_vision.methods.rotation import (
    RotationHead,
    joint_loss,
    rotate,
    rotation_logits,
    with_rotation_head,
)
from it3_vision.methods.tent import Tent
from it3_vision.methods.ttt import TTT

__all__ = [
    "ETA",
    "MEMO",
    "TTT",
    "BatchNormStats",
    "Fisher",
    "RotationHead",
    "Tent",
    "joint_loss",
    "rotate",
    "rotation_logits",
    "with_rotation_head",
]
