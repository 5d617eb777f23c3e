"""OpenFOAM: a case written from templates, run in pieces, read and cleaned up."""

from it3_aero.cars.foam.case import solve
from it3_aero.cars.foam.files import PRESETS, SPEED, Flow, Preset, preset

__all__ = ["PRESETS", "SPEED", "Flow", "Preset", "preset", "solve"]
