"""From the click to the answer on the page: one point, one target frame, by the clock of a real browser.

make test-browser  # installs the browser
python benchmarks/page.py
"""

import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median

import tyro
from playwright.sync_api import sync_playwright

PLACES = ((0.42, 0.50), (0.58, 0.60), (0.30, 0.40), (0.70, 0.30), (0.50, 0.75))


@dataclass(frozen=True)
class Page:
    """Ask about new points in new target frames, then about the same frames with another method."""

    port: int = 7961

    def run(self):
        code = "from lpa_cwm.cli.main import main; main()"
        server = subprocess.Popen([sys.executable, "-c", code, "page", "--port", str(self.port), "--no-show"])
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                self.ask(self.opened(browser))
                browser.close()
        finally:
            server.terminate()
            server.wait()

    def opened(self, browser):
        page = browser.new_page(viewport={"width": 1360, "height": 1000})
        for _ in range(240):
            try:
                page.goto(f"http://127.0.0.1:{self.port}")
                break
            except Exception:
                time.sleep(0.5)
        page.wait_for_selector("#frame img")
        page.wait_for_selector("#about b")
        page.wait_for_timeout(2000)
        return page

    def ask(self, page):
        first, fresh, known = [], [], []
        for number, (x, y) in enumerate(PLACES):
            box = page.locator("#frame img").bounding_box()
            page.mouse.click(box["x"] + x * box["width"], box["y"] + y * box["height"])
            page.wait_for_function("n => document.querySelectorAll('#legend li').length == n", arg=number + 1)
            page.locator("#target input[type=number]").fill(str(5 + 2 * number))
            # Leaving the field asks.
            answer, result = self.timed(page, lambda: page.keyboard.press("Tab"))
            first.append(answer)
            fresh.append(result)
            other = number % 2
            known.append(self.timed(page, lambda other=other: page.locator("#method input").nth(other).check())[0])
        print(f"first answer, by the direct path: median {median(first):.2f} s, slowest {max(first):.2f} s")
        print(f"result through time, 5 to 13 frames: median {median(fresh):.2f} s, slowest {max(fresh):.2f} s")
        print(f"first answer of another method, same frames: median {median(known):.2f} s")

    def timed(self, page, act):
        """Seconds from an action to the first answer it asked for, and to the result."""
        page.evaluate("document.querySelector('.why')?.remove()")
        start = time.perf_counter()
        act()
        page.wait_for_selector(".why-facts")
        first = time.perf_counter() - start
        page.wait_for_selector(".why-facts.settled")
        return first, time.perf_counter() - start


if __name__ == "__main__":
    tyro.cli(Page).run()
