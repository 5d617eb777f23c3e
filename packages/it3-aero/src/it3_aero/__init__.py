"""IT³ for aerodynamics: `it3_aero.wings` predicts lift-to-drag ratios, `it3_aero.cars` drag."""

__version__ = "0.1.0"
