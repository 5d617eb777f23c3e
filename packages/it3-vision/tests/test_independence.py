"""The dependency arrow: this package may import it3_core, and never another domain package."""

import ast
from collections.abc import Iterator
from pathlib import Path

import it3_vision

OTHER_DOMAINS = {"it3_aero", "it3_tabular"}


def imported(source: str) -> Iterator[str]:
    """The top-level names of everything that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_no_other_domain_is_imported() -> None:
    modules = sorted(Path(it3_vision.__file__).parent.rglob("*.py"))
    assert modules
    for module in modules:
        assert OTHER_DOMAINS.isdisjoint(imported(module.read_text(encoding="utf-8"))), module
