"""A panel by the names that people and screen readers find it by, and waiting for what it does."""

import time

from playwright.sync_api import Locator, Page

from tests.browser.lab import Lab


class Panel:
    """The panel by the names that people and screen readers find it by."""

    def __init__(self, place: Page | Locator) -> None:
        self.message = place.get_by_role("textbox", name="Message", exact=True)
        self.send = place.get_by_role("button", name="Send", exact=True)
        self.stop = place.get_by_role("button", name="Stop", exact=True)
        self.answers = place.get_by_role("log", name="Conversation").get_by_role("article", name="Answer")
        self.status = place.locator(".nbgen").get_by_role("status")

    def ask(self, text: str) -> None:
        self.message.fill(text)
        self.message.press("Enter")

    def length(self) -> int:
        return len(self.answers.last.inner_text())


def running(lab: Lab) -> int:
    return (lab.get("nbgen/api/v1/model")["status"] or {}).get("running", 0)


def until(condition: object, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end, "still not so"
        time.sleep(0.05)
