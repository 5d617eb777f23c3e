"""How far two answers are apart, under the names the literature gives these measures.

All take log-probabilities with classes on dimension 1 and keep the other dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["js_divergence", "kl_divergence", "l2_distance"]


def _finite(log_p: Tensor) -> Tensor:
    """A class that is ruled out has log-probability −∞, and 0 · (∞ − ∞) is not a number."""
    return log_p.clamp_min(-1e4)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Kullback–Leibler divergence KL(p ‖ q) = Σ p (log p − log q), in nats; not symmetric.

    Example:
        >>> import torch
        >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
        >>> round(kl_divergence(p, q).item(), 4), round(kl_divergence(q, p).item(), 4)
        (0.5108, 0.3681)
    """
    log_p, log_q = _finite(log_p), _finite(log_q)
    return (log_p.exp() * (log_p - log_q)).sum(1).clamp_min(0)


def js_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Jensen–Shannon divergence: mean KL to the midpoint, in nats; symmetric, at most log 2.

    Example:
        >>> import torch
        >>> p, q = torch.tensor([[1e-9, 1.0]]).log(), torch.tensor([[1.0, 1e-9]]).log()
        >>> round(js_divergence(p, q).item(), 4)  # log 2
        0.6931
    """
    log_p, log_q = _finite(log_p), _finite(log_q)
    middle = torch.logaddexp(log_p, log_q) - math.log(2)
    total = log_p.exp() * (log_p - middle) + log_q.exp() * (log_q - middle)
    return (total.sum(1) / 2).clamp_min(0)


def l2_distance(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Euclidean distance between the two probability vectors.

    Example:
        >>> import torch
        >>> p, q = torch.tensor([[0.0, 1.0]]).log(), torch.tensor([[1.0, 0.0]]).log()
        >>> round(l2_distance(p, q).item(), 4)  # square root of 2
        1.4142
    """
    distance: Tensor = torch.linalg.vector_norm(log_p.exp() - log_q.exp(), dim=1)
    return distance
