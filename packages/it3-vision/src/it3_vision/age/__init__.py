"""Ages from faces: from UTKFace's file names to a trained network, its tables and its answers."""

from it3_vision.age.faces import Faces, Interval, read_faces
from it3_vision.age.network import FaceSettings
from it3_vision.age.runs import Run, Training, load_run, train

__all__ = [
    "FaceSettings",
    "Faces",
    "Interval",
    "Run",
    "Training",
    "load_run",
    "read_faces",
    "train",
]
