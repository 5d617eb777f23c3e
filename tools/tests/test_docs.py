"""The pages: the tests and files that they name exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/*.md", "packages/*/README.md")


def test_every_promise_names_tests_that_exist() -> None:
    """A short path is in the package, or in the folder, that was named before it in its cell."""
    text = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    text = re.sub(r"(\w+), (\w+), (\w+): (test_\w+\.py)", r"\1/\4, \2/\4, \3/\4", text)
    text = re.sub(r"\b(aero|core|tabular|vision)/", r"packages/it3-\1/tests/", text)
    for cell in re.split(r"[|\n]", text):
        package = folder = ROOT
        for path in re.findall(r"[\w/-]*\btest_\w+\.py", cell):
            if path.startswith("packages/"):
                package = folder = ROOT.joinpath(*path.split("/")[:3])
            files = [base / path for base in (ROOT, folder, package) if (base / path).is_file()]
            assert files, f"{path} in the cell {cell}"
            folder = files[0].parent


@pytest.mark.parametrize("page", [path for page in PAGES for path in ROOT.glob(page)], ids=str)
def test_every_link_points_to_a_file(page: Path) -> None:
    links = re.findall(r"\]\(([^):#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert not [link for link in links if not (page.parent / link).exists()]
