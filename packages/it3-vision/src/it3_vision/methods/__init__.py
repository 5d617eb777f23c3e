"""Methods that need images, beside it3-core's."""

from it3_vision.methods.fisher import Fisher
from it3_vision.methods.per_image import MEMO, TTT
from it3_vision.methods.rotation import joint_loss, with_rotation_head

__all__ = ["MEMO", "TTT", "Fisher", "joint_loss", "with_rotation_head"]
