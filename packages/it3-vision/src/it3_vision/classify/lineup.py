"""Every line of the table: which methods are compared, with which settings, at which batch size."""

from __future__ import annotations

from it3_core.norms import has_batch_norm
from it3_vision.augmix import AugMix
from it3_vision.classify.runs import Run
from it3_vision.lineup import Lineup, common, norm_for, shown
from it3_vision.methods import ETA, MEMO, TTT, Tent

__all__ = ["ONCE", "lineup"]

ONCE = ("source", "second pass", "vanilla net", "MEMO", "TTT")
"""Methods whose answers don't depend on the batch size: they look at one image at a time."""

_FEWEST = 9  # images that have statistics of their own to speak of


def lineup(run: Run, batch_size: int, *, slow: bool = True) -> Lineup:
    """The methods that are compared at a batch size, each an object of its own.

    Up to 8 images, "batch statistics" means blended ones for every method, since a handful of
    images has none of its own to speak of. IT³'s rates are those that did best on held-out
    training images; the others' are their papers', for CIFAR.

    Args:
        run: the trained network.
        batch_size: how many images come together.
        slow: whether to have MEMO and TTT, which take many passes for each image.

    Example:
        >>> ONCE[0]
        'source'
    """
    model, adapter = run.model, run.adapter
    norm = norm_for(run, batch_size, _FEWEST)
    told = f"norm={shown(norm)}"
    found = common(run, batch_size, _FEWEST)
    found.add("Tent", Tent(model, adapter, norm=norm), f"online, Adam at 1e-3, {told}")
    episodic = Tent(model, adapter, norm=norm, online=False)
    start = "from the trained network for each batch"
    found.add("Tent, episodic", episodic, f"the same, {start}, {told}")
    settings = f"online, SGD at 5e-3, E0 = 0.4 ln C, d = 0.4, {told}"
    found.add("ETA", ETA(model, adapter, norm=norm), settings)
    eata = ETA(model, adapter, run.fisher, fisher_weight=1.0, norm=norm)
    found.add("EATA", eata, "ETA with the Fisher term, weight 1")
    if not slow:
        return found
    flip = bool(run.settings["training"]["flip"])
    augment = AugMix(run.prepare.mean, run.prepare.std, flip=flip)
    blended = ", statistics blended" if has_batch_norm(model) else ""
    copies = f"16 AugMix copies of each image, SGD at 5e-3{blended}"
    found.add("MEMO", MEMO(model, adapter, augment, copies=16), copies)
    if run.rotates:
        turned = "each image's four rotations, one step of SGD at 1e-3"
        found.add("TTT", TTT(model, adapter, steps=1, lr=1e-3), turned)
    return found
