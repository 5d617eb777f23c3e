"""What these methods share: the entropy, a stream's memory, and answers put together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from it3_core import Adaptation, Adapter, IT3Error
from it3_core.descent import Descent, OptimizerFactory
from it3_core.fast import FastModel, Session
from it3_core.methods.base import idempotence_error
from it3_core.norms import Norm, has_batch_norm

__all__ = [
    "Answer",
    "Stream",
    "batch_norm_choice",
    "check_answer",
    "check_images",
    "entropy",
    "generator",
    "joined",
]

Answer = Literal["before", "after"]
"""Which output a step's batch is answered with: the one before its last step, or one after."""


def entropy(logits: Tensor) -> Tensor:
    """H(ŷ) = −Σ p(ŷ_c) log p(ŷ_c), one number per instance.

    Example:
        >>> import torch
        >>> entropy(torch.tensor([[0.0, 0.0], [2.0, 0.0]]))
        tensor([0.6931, 0.3653])
    """
    if logits.dim() < 2 or logits.shape[1] < 2:
        raise IT3Error(
            f"an entropy is of logits (batch, classes, …) of two classes or more, not of shape "
            f"{tuple(logits.shape)}"
        )
    log_p = logits.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def batch_norm_choice(model: nn.Module, norm: Norm) -> Norm:
    """`norm` where the network has a batch norm; without one there is nothing to choose.

    Example:
        >>> import torch
        >>> batch_norm_choice(torch.nn.GroupNorm(1, 2), "batch")
        'source'
    """
    return norm if has_batch_norm(model) else "source"


def check_answer(answer: Answer | None, online: bool) -> Answer:
    """The output to answer with: by default before the step online, after it in episodes.

    Example:
        >>> check_answer(None, online=True)
        'before'
    """
    if answer not in (None, "before", "after"):
        raise IT3Error(f'answer must be "before" or "after" the last step, not {answer!r}')
    return answer or ("before" if online else "after")


def check_images(x: Tensor) -> None:
    """Refuses what is not a batch of images.

    Example:
        >>> import torch
        >>> check_images(torch.zeros(3, 32, 32))
        Traceback (most recent call last):
        ...
        it3_core.errors.IT3Error: images must have the shape (batch, channels, height, width), ...
    """
    if not isinstance(x, Tensor) or x.dim() != 4:
        found = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise IT3Error(f"images must have the shape (batch, channels, height, width), not {found}")


def generator(seed: int, index: int) -> torch.Generator:
    """Random numbers for the image of this index in the stream, the same in every run.

    Example:
        >>> import torch
        >>> first, again = (torch.rand(2, generator=generator(0, 7)) for _ in range(2))
        >>> torch.equal(first, again)
        True
    """
    # A prime far above any stream's length keeps the seeds of two methods' images apart.
    return torch.Generator().manual_seed((seed * 1_000_000_007 + index) % 2**63)


def joined(
    parts: Sequence[Adaptation], fast: FastModel, adapter: Adapter, x: Tensor, norm: Norm
) -> Adaptation:
    """The answers to images that came one by one, as the answer to their batch."""
    if len(parts) == 1:
        return parts[0]
    y, y0 = (torch.cat([getattr(p, name) for p in parts]) for name in ("prediction", "initial"))
    before: Callable[[], Tensor] = lambda: torch.cat([p.error_before for p in parts])  # noqa: E731
    after: Callable[[], Tensor] = lambda: torch.cat([p.error_after for p in parts])  # noqa: E731
    if norm == "source":  # then images don't see each other, and one pass does for all
        before = partial(idempotence_error, fast, adapter, x, y0)
        after = partial(idempotence_error, fast, adapter, x, y)
    reasons = [part.fallback for part in parts if part.fallback]
    reason = f"in {len(reasons)} of {len(parts)} images {reasons[0]}" if reasons else None
    return Adaptation(y, y0, max(p.steps for p in parts), reason, before=before, after=after)


class Stream:
    """Where a method's weights go on from: the last batch's, or the trained ones each time.

    Args:
        optimizer, lr: as for `IT3`.
        online: whether a batch goes on from where the last one left the weights.
    """

    def __init__(self, fast: FastModel, optimizer: OptimizerFactory, lr: float, online: bool):
        self.online = online
        self._fast = fast
        self._settings = (optimizer, lr)
        self.reset()

    def reset(self) -> None:
        """Starts anew from the network as it was trained."""
        self._descent: Descent | None = None
        self._kept: dict[str, Tensor] = {}
        self._resumed: dict[str, Tensor] = {}

    @contextmanager
    def batch(self, run: Session, x: Tensor, neutral: Tensor) -> Iterator[Descent]:
        """The weights for this batch; one that ends in an exception leaves no trace."""
        if not self.online:
            yield run.descent(x, neutral, *self._settings)
            return
        descent = self._descent or self._begin(run, x, neutral)
        _check_unchanged(run, descent)
        self._kept = descent.state()
        try:
            yield descent
        except BaseException:  # half a batch is no state to go on from
            self.undo()
            raise
        finally:
            self._kept = {}

    def undo(self) -> None:
        """Takes this batch's steps back."""
        if self._descent is not None and self._kept:
            self._descent.restore(self._kept)

    def state_dict(self) -> dict[str, Tensor]:
        """All that the stream has left behind, as named tensors that safetensors can store."""
        return dict(self._resumed) if self._descent is None else self._descent.state()

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken."""
        shapes = {f"weights.{k}": p.shape for k, p in self._fast.module.named_parameters()}
        wanted = {k: shapes[k] for k in (f"weights.{n}" for n in self._fast.selected or ())}
        found = {k: value.shape for k, value in state.items() if k.startswith("weights.")}
        if state and found != wanted:
            raise IT3Error(
                "this state is of another network or of other parameters: make the method as it "
                "was made"
            )
        self.reset()
        self._resumed = {name: value.detach().clone() for name, value in state.items()}

    def _begin(self, run: Session, x: Tensor, neutral: Tensor) -> Descent:
        descent = Descent(run.chosen(x, neutral), *self._settings)
        if self._resumed:
            like = next(iter(descent.weights.values()))
            if any(v.dtype != like.dtype for k, v in self._resumed.items() if k[:8] == "weights."):
                raise IT3Error(f"this state is not of {like.dtype}, as the network's weights are")
            descent.restore({k: v.to(like.device) for k, v in self._resumed.items()})
            self._resumed = {}
        self._descent = descent
        return descent


def _check_unchanged(run: Session, descent: Descent) -> None:
    for name, leaf in descent.weights.items():
        now = run.source[name]
        if (now.dtype, now.device, now.shape) != (leaf.dtype, leaf.device, leaf.shape):
            raise IT3Error(
                "the network's weights have another type, device or shape than when the stream "
                "began: call reset() to begin anew"
            )
