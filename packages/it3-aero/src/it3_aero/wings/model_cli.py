"""The commands around a trained network: train, evaluate, predict, report and demo."""

from __future__ import annotations

import typer

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to `it3-aero wings`."""
