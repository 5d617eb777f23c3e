"""The report in a real browser: its pictures are there, it fits a phone, and nothing is fetched."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or ""

# Where CI runs, a missing browser is a failure and no reason to skip.
pytestmark = pytest.mark.skipif(
    not CHROMIUM and not os.environ.get("CI"), reason="needs chromium (apt: chromium)"
)

PROBE = """<!doctype html><title>probe</title><pre id=found></pre>
<iframe id=page src="page.html" width=WIDTH height=800></iframe>
<script>
page.onload = () => {
  const inside = page.contentDocument, root = inside.documentElement;
  found.textContent = JSON.stringify({
    pictures: [...inside.images].map(image => image.complete && image.naturalWidth),
    wide: root.scrollWidth, room: root.clientWidth, sections: inside.querySelectorAll("h2").length,
  });
};
</script>"""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """The address of a folder on localhost, and what was asked of it."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def browse(address: str, tmp_path: Path) -> str:
    """The page's DOM after it has loaded."""
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=15000", "--dump-dom", address,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, timeout=120, check=True).stdout.decode()


@pytest.mark.parametrize("width", [390, 1200])
def test_pictures_are_there_and_the_page_fits(
    served: tuple[str, list[str]], demo: Path, tmp_path: Path, width: int
) -> None:
    shutil.copy(demo / "report.html", tmp_path / "page.html")
    (tmp_path / "probe.html").write_text(PROBE.replace("WIDTH", str(width)))
    dom = browse(f"{served[0]}/probe.html", tmp_path)
    found = json.loads(re.search(r"<pre[^>]*>(.*?)</pre>", dom, re.DOTALL)[1])  # type: ignore[index]
    assert len(found["pictures"]) >= 7
    assert all(picture > 300 for picture in found["pictures"])
    assert found["sections"] >= 8
    assert found["wide"] <= found["room"], "it scrolls sideways as a whole"


def test_no_request_leaves_the_page(
    served: tuple[str, list[str]], demo: Path, tmp_path: Path
) -> None:
    (address, asked), marked = served, tmp_path / "marked.html"
    whole = (demo / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", whole)
    picture = f"<img src='{address}/picture.png'>"
    for page, wanted in ((picture, {"/picture.png"}), (f"{whole}{picture}", set())):
        # First without our policy, so that the test would see a request; then with it.
        asked.clear()
        marked.write_text(page.replace(f"</main>{picture}", f"{picture}</main>"))
        browse(marked.as_uri(), tmp_path)
        assert set(asked) == wanted
