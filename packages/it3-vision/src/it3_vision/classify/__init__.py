"""Classifiers: from a folder of images to a trained network, its tables and its answers."""

from it3_vision.classify.runs import Run, Training, load_run, train
from it3_vision.networks import NetworkSettings

__all__ = ["NetworkSettings", "Run", "Training", "load_run", "train"]
