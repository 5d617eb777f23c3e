"""OpenFOAM: a case written from templates, run in pieces, read and cleaned up."""

from it3_aero.cars.foam.case import SPEED, rehearse, solve
from it3_aero.cars.foam.flow import Flow
from it3_aero.cars.foam.presets import PRESETS, Preset, preset

__all__ = ["PRESETS", "SPEED", "Flow", "Preset", "preset", "rehearse", "solve"]
