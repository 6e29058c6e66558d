"""A picture of the page as a browser shows it; playwright and Chromium are needed for it and for nothing else."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
from pathlib import Path

from scope_lite.store.errors import ScopeError

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SIZE = {"width": 1100, "height": 1500}
WAIT = 120_000  # milliseconds; a busy machine is slow to start a browser


def photograph(page: Path, out: Path) -> Path:
    """Open the page in headless Chromium, sort by reward on real users, and save what is seen, as PNG.

    Returns:
        ``out``.

    Raises:
        ScopeError: without playwright or a browser, or if the page reports an error in the browser.
    """
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if importlib.util.find_spec("playwright") is None or browser_path is None:
        raise ScopeError("a picture of the page needs playwright (pip install playwright) and Chromium on the path")
    playwright = importlib.import_module("playwright.sync_api")
    troubles: list[str] = []
    with playwright.sync_playwright() as started:
        # no sandbox: this may run as root, and the page is ours and asks for nothing
        browser = started.chromium.launch(executable_path=browser_path, args=["--no-sandbox"], timeout=WAIT)
        shown = browser.new_page(viewport=SIZE)
        shown.set_default_timeout(WAIT)
        shown.on("console", lambda message: troubles.append(message.text))
        shown.on("pageerror", lambda error: troubles.append(str(error)))
        shown.goto(page.resolve().as_uri())
        head = shown.get_by_role("button", name="real users")
        if head.count():
            head.click(), head.click()  # largest first
        out.parent.mkdir(parents=True, exist_ok=True)
        shown.screenshot(path=str(out))
        browser.close()
    if troubles:
        raise ScopeError(f"the browser complains about the page: {troubles[0]}")
    return out
