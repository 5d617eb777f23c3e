"""TTT: test-time training on rotations of the image that is asked about."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
import torch.nn.functional as nnf
from torch import Tensor, nn

from it3_core import Adaptation, Adapter, IT3Error
from it3_core.batching import take
from it3_core.descent import OptimizerFactory
from it3_core.fast import FastModel, Parameters
from it3_core.methods.base import check_settings, idempotence_error, not_finite, prepared
from it3_core.norms import Norm
from it3_vision.methods.base import Stream, batch_norm_choice, check_images, generator, joined
from it3_vision.methods.rotation import RotationHead, rotate, rotation_logits

__all__ = ["TTT"]


class TTT:
    """Minimises l_s(x; θ_s, θ_e), the rotation head's loss, over the shared weights θ_e.

    Sun et al. 2020. Each image of a batch is an episode of its own: it is rotated by all four
    quarter turns, the weights up to the head's layer take a few steps, and the image is answered
    as it came. Online, the weights go on from image to image.

    Args:
        model: a network made by `with_rotation_head` and trained with `joint_loss`.
        adapter: what kind of answer it gives.
        online: whether an image goes on from the last one, with momentum and all.
        head: whether the rotation head adapts too, as in the authors' code; not in the paper.
        copies: rotated copies a step, a multiple of four: equally many of each turn.
        crop: copies are shifted by up to so many pixels, each its own way. The authors' code has
            32 copies, shifted by up to 4 pixels.
        seed: of the shifts.
        steps: gradient steps an image: the paper has 10 in episodes and 1 online.
        lr, optimizer, norm: as for `IT3`; the paper has SGD with 1e-3.
        parameters: which parameters may adapt; those that the head doesn't hear never move.

    Example:
        >>> import torch
        >>> from it3_core import Classification, condition
        >>> from it3_vision.methods import with_rotation_head
        >>> adapter, x = Classification(10), torch.randn(2, 3, 8, 8)
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(),
        ...                           torch.nn.Linear(8 * 36, 10))
        >>> model = with_rotation_head(condition(net, adapter, "0"), adapter, "model.0", x)
        >>> TTT(model, adapter, steps=2)(x).steps
        2
    """

    def __init__(
        self,
        model: nn.Module,
        adapter: Adapter,
        *,
        online: bool = False,
        head: bool = False,
        copies: int = 4,
        crop: int = 0,
        seed: int = 0,
        steps: int = 1,
        lr: float = 1e-3,
        optimizer: OptimizerFactory = "SGD",
        parameters: Parameters = None,
        norm: Norm = "source",
    ) -> None:
        check_settings(steps, lr)
        if copies < 4 or copies % 4:
            raise IT3Error(f"copies must be a multiple of four, one for each turn, not {copies}")
        if crop < 0:
            raise IT3Error(f"crop is a number of pixels from 0 up, not {crop}")
        if parameters is None and not head:
            parameters = _not_the_head
        self.adapter = adapter
        self.online = online
        self.copies = copies
        self.crop = crop
        self.seed = seed
        self.steps = steps
        self.lr = lr
        self.norm = batch_norm_choice(model, norm)
        self._fast = FastModel(model, parameters, self.norm)
        if not isinstance(getattr(self._fast.module, "rotation", None), RotationHead):
            raise IT3Error("the network has no rotation head: make it with with_rotation_head()")
        self._stream = Stream(self._fast, optimizer, lr, online)
        self._index = 0

    def __call__(self, x: Tensor) -> Adaptation:
        check_images(x)
        x, size = prepared(x, self._fast)
        with torch.inference_mode(False):  # rows taken inside it could not be adapted to
            parts = [self._adapt(take(x, [row])) for row in range(size)]
        return joined(parts, self._fast, self.adapter, x, self.norm)

    def _adapt(self, image: Tensor) -> Adaptation:
        chance = generator(self.seed, self._index)
        self._index += 1
        turns = torch.arange(self.copies, device=image.device) % 4
        steps = self.steps if self.lr else 0
        with self._fast.session() as run:
            neutral = self.adapter.neutral(image)
            with self._stream.batch(run, image, neutral) as descent:
                theta = descent.weights
                with torch.no_grad():
                    y0 = run(image, neutral, theta)
                for _ in range(steps):
                    rotated = rotate(self._shifted(image, chance), turns)
                    signal = neutral.expand(self.copies, *neutral.shape[1:])
                    logits = rotation_logits(run, rotated, signal, theta)
                    descent.step(nnf.cross_entropy(logits, turns))
                with torch.no_grad():
                    y = run(image, neutral, theta) if steps else y0.clone()
                sound = bool(torch.isfinite(y).all()) and descent.finite()
                if not sound:
                    self._stream.undo()
        error = partial(idempotence_error, self._fast, self.adapter, image)
        if not sound:
            return Adaptation(y0.clone(), y0, 0, not_finite(y0), before=partial(error, y0))
        return Adaptation(y, y0, steps, before=partial(error, y0), after=partial(error, y))

    def _shifted(self, image: Tensor, chance: torch.Generator) -> Tensor:
        """So many copies of an image, each shifted on its own; its edge fills the gap."""
        copies = image.expand(self.copies, *image.shape[1:])
        if not self.crop:
            return copies
        height, width = image.shape[-2:]
        padded = nnf.pad(image, [self.crop] * 4, mode="replicate")[0]
        corners = torch.randint(2 * self.crop + 1, (self.copies, 2), generator=chance).tolist()
        return torch.stack([padded[:, t : t + height, s : s + width] for t, s in corners])

    def reset(self) -> None:
        """Starts anew from the network as it was trained, with the first image's shifts."""
        self._stream.reset()
        self._index = 0

    def state_dict(self) -> dict[str, Tensor]:
        """All that the stream has left behind, as named tensors that safetensors can store."""
        return {**self._stream.state_dict(), "index": torch.tensor(self._index)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Goes on where `state_dict` was taken: the next answers are the same, bit for bit."""
        rest = dict(state)
        index = rest.pop("index", torch.tensor(0))
        self._stream.load_state_dict(rest)
        self._index = int(index)


def _not_the_head(name: str, parameter: Tensor) -> bool:
    return not name.startswith("rotation.")
