"""Print, as JSON, what one update of the chart costs the browser's main thread, in milliseconds.

`cpu` is the thread's own time for all of an update (script, style, layout, paint), whatever else the machine
does; `receive`, `draw`, `paint` and their `total` are medians of the wall clock, `worst` its highest.

`npm run demo` builds the page; then ``python js/bench/run.py [rows ...]`` needs Playwright and a Chromium
(``CHROMIUM`` names it, `/usr/bin/chromium` unless set).
"""

# ruff: noqa: INP001 - a script beside the page it opens, not a package

import json
import os
import sys
from pathlib import Path

from playwright.sync_api import CDPSession, sync_playwright

PAGE = Path(__file__).resolve().parents[1] / "demo" / "dist" / "bench.html"
WARM_UP = 5
UPDATES = 15
ROWS = (1_000, 10_000, 100_000, 1_000_000)
CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
)


def busy(session: CDPSession) -> float:
    """Return the seconds that the page's main thread has worked."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(each["value"] for each in metrics if each["name"] == "TaskDuration"))


def main() -> None:
    """Run every size in a fresh page."""
    sizes = [int(argument) for argument in sys.argv[1:]] or list(ROWS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=list(CHROMIUM_FLAGS),
        )
        for rows in sizes:
            page = browser.new_page(viewport={"width": 900, "height": 400})
            page.goto(PAGE.as_uri())
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            page.evaluate("rows => prepare(rows)", rows)
            page.evaluate("updates => measure(updates)", WARM_UP)
            before = busy(session)
            result = page.evaluate("updates => measure(updates)", UPDATES)
            cpu = 1000 * (busy(session) - before) / UPDATES
            rounded = {name: round(value, 1) for name, value in {"cpu": cpu, **result}.items()}
            sys.stdout.write(json.dumps({"rows": rows, **rounded}) + "\n")
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
