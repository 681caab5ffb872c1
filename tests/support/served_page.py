"""The page of `omni serve` in a browser, as a person uses it."""

from __future__ import annotations

import json
import time
from typing import Any

from support.chromium import TIMEOUT_S, Chromium
from support.omni_server import OmniServer


class ServedPage:
    def __init__(self, browser: Chromium) -> None:
        self.browser = browser

    def open(self, omni: OmniServer, **options: Any) -> None:
        self.browser.open(omni.url + "/", **{"width": 900, **options})

    def until(self, expression: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not self.browser.evaluate(f"Boolean({expression})"):
            assert time.monotonic() < deadline, (expression, self.text("body"), self.browser.problems)
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        found: str = self.browser.evaluate(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''")
        return found

    def ask(self, text: str) -> None:
        """Write a prompt and press Enter."""
        self.until("document.getElementById('model').textContent")
        self.browser.evaluate("document.getElementById('prompt').focus()")
        self.browser.call("Input.insertText", text=text)
        self.browser.call("Input.dispatchKeyEvent", type="keyDown", key="Enter", code="Enter")

    def until_idle(self) -> None:
        self.until("document.querySelector('.turn') && !document.querySelector('.busy')")
