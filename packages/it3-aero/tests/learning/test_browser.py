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

from it3_aero.learning.evaluate import Evaluation
from it3_aero.learning.report import write_report
from it3_aero.learning.runs import Run
from it3_aero.learning.shapes import Levels

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# Where CI runs, a missing browser is a failure and no reason to skip.
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"), reason="needs chromium (apt: chromium)"
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


class Served:
    """A folder on localhost, and what was asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        served = self

        class Handler(http.server.SimpleHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                served.asked.append(self.path)

        handler = functools.partial(Handler, directory=str(folder))
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "served"
    folder.mkdir()
    served = Served(folder)
    served.thread.start()
    yield served
    served.server.shutdown()
    served.server.server_close()
    served.thread.join()


def browse(address: str, tmp_path: Path, *options: str) -> str:
    """The page's DOM after it has loaded."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
        "--no-first-run", "--disable-background-networking", "--disable-component-update",
        "--disable-sync", "--disable-dev-shm-usage", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=15000", *options, "--dump-dom", address,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, timeout=120, check=True)
    return done.stdout.decode()


@pytest.fixture(scope="module")
def page(
    _run: Run,
    levels: Levels,
    evaluation: Evaluation,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    folder = tmp_path_factory.mktemp("page")
    return write_report(_run, levels.drawn(12), evaluation, folder / "page.html", "a test")


@pytest.mark.parametrize("width", [390, 1200])
def test_pictures_are_there_and_the_page_fits(
    served: Served, page: Path, tmp_path: Path, width: int
) -> None:
    shutil.copy(page, served.folder / "page.html")
    (served.folder / "probe.html").write_text(PROBE.replace("WIDTH", str(width)))
    dom = browse(f"{served.address}/probe.html", tmp_path)
    found = json.loads(re.search(r"<pre[^>]*>(.*?)</pre>", dom, re.DOTALL)[1])  # type: ignore[index]
    assert len(found["pictures"]) >= 7
    assert all(picture > 300 for picture in found["pictures"])
    assert found["sections"] >= 8
    assert found["wide"] <= found["room"], "it scrolls sideways as a whole"


def requests(page: Path, tmp_path: Path, elsewhere: str) -> set[str]:
    """What the browser asked the network for while it showed a file."""
    log = tmp_path / "net.json"
    browse(page.as_uri(), tmp_path, f"--log-net-log={log}", "--net-log-capture-mode=Everything")
    asked = re.findall(r'"(?:https?|wss?|ftp)://[^"]+"', log.read_text(encoding="utf-8"))
    return {address.strip('"') for address in asked if elsewhere in address}


def test_no_request_leaves_the_page(served: Served, page: Path, tmp_path: Path) -> None:
    marked = tmp_path / "marked.html"
    whole = page.read_text(encoding="utf-8")
    assert not re.search(r"""(src|href|url)\s*[=(]\s*["']?(https?:)?//""", whole)
    # First that the test would see one: a page that fetches a picture without our policy.
    marked.write_text(f"<img src='{served.address}/picture.png'>")
    assert requests(marked, tmp_path, served.address)
    assert "/picture.png" in served.asked
    # Then that the policy in our pages stops it, whatever finds its way into one.
    served.asked.clear()
    marked.write_text(whole.replace("</main>", f"<img src='{served.address}/leak.png'></main>"))
    browse(marked.as_uri(), tmp_path)
    assert served.asked == []
    # And the page itself asks for nothing at all.
    assert requests(page, tmp_path, "127.0.0.1") == set()
