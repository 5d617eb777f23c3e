"""IT³, idempotent test-time training: adapters, conditioning, losses and methods.

Train `f(x, signal)` with `zigzag_loss`; at test time `IT3(model, adapter)(x)` answers a batch,
says how unusual it is, and leaves the model as it was. The README has a worked example.
"""

import ast
from importlib import import_module
from pathlib import Path

__version__ = "0.1.0"

# torch takes seconds to import, so a name is looked up in its home when it is asked for (PEP 562).
# The stub beside this file, which type checkers read, is the one list of names.
_STUB = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
_HOMES = {
    alias.name: node.module
    for node in _STUB.body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
