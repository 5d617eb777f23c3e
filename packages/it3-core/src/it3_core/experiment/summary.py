"""What `evaluation.json` holds: all there is to say of an evaluation beside its numbers."""

from __future__ import annotations

from typing import Any, TypedDict


class Course(TypedDict):
    """How a training went, epoch by epoch."""

    train: list[float]
    validation: list[float]
    best_epoch: int
    seconds: float


class NetworkSummary(TypedDict):
    """What a page says of a network; tunings by batch size, as they describe themselves."""

    seed: int
    history: Course
    measured: dict[str, Any]
    parameters: int
    tunings: dict[str, dict[str, Any]]
    paper: dict[str, dict[str, Any]]  # `PaperStep`s


class ScoreSummary(TypedDict):
    """How well a score finds wrong predictions and shifted inputs, for one training seed."""

    seed: int
    score: str
    spearman: float | None
    auroc_wrong: float | None
    auroc_shifted: float | None
    pearson: float | None


class Summary(TypedDict):
    """What there is to say of an evaluation beside its numbers, as `evaluation.json` holds it."""

    title: str
    noun: str
    in_distribution: str
    columns: list[tuple[str, str, int]]
    headline: list[str]
    groups: list[tuple[str, list[str], bool, list[int]]]
    methods: dict[str, str]
    notes: list[str]
    scores: list[ScoreSummary]
    memory: dict[str, float]
    networks: list[NetworkSummary]
    settings: dict[str, Any]
    provenance: dict[str, Any]
    command: str
    pictures: list[tuple[str, str, str, str]]
