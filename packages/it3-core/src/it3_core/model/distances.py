"""How far two answers are apart, under the names the literature gives these measures.

All take log-probabilities with classes on dimension 1 and keep the other dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _finite(log_p: Tensor) -> Tensor:
    """A class that is ruled out has log-probability −∞, and 0 · (∞ − ∞) is not a number."""
    return log_p.clamp_min(-1e4)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Kullback–Leibler divergence KL(p ‖ q) = Σ p (log p − log q), in nats; not symmetric."""
    log_p, log_q = _finite(log_p), _finite(log_q)
    return (log_p.exp() * (log_p - log_q)).sum(1).clamp_min(0)


def js_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Jensen–Shannon divergence: mean KL to the midpoint, in nats; symmetric, at most log 2."""
    log_p, log_q = _finite(log_p), _finite(log_q)
    middle = torch.logaddexp(log_p, log_q) - math.log(2)
    total = log_p.exp() * (log_p - middle) + log_q.exp() * (log_q - middle)
    return (total.sum(1) / 2).clamp_min(0)


def l1_distance(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Sum of the absolute differences between the two probability vectors; at most 2."""
    return (log_p.exp() - log_q.exp()).abs().sum(1)


def l2_distance(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Euclidean distance between the two probability vectors."""
    distance: Tensor = torch.linalg.vector_norm(log_p.exp() - log_q.exp(), dim=1)
    return distance


MEASURES = {"js": js_divergence, "kl": kl_divergence, "l1": l1_distance, "l2": l2_distance}
