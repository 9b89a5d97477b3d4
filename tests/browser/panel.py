"""A panel by the names that people and screen readers find it by, and waiting for what it does."""

import time
from collections.abc import Callable

from playwright.sync_api import Locator, Page

from tests.browser.lab import Lab
from tests.conftest import PATIENCE


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

    def grows(self) -> None:
        """Wait until the answer has been seen at several lengths: one that comes in one piece has two."""
        grows(self.answers.last)

    def goes_on(self) -> None:
        """Wait for some lines more."""
        before = self.length()
        until(lambda: self.length() > before + 200)

    def hears(self) -> Callable[[], list[str]]:
        """From now on, all that the status says, also what is gone again; the call tells it so far."""
        listener = self.status.evaluate_handle(
            "(status) => { const said = [status.textContent]; new MutationObserver(() => said.push(status.textContent))"
            ".observe(status, { childList: true, characterData: true, subtree: true }); return said; }"
        )
        return listener.json_value


def running(lab: Lab) -> int:
    return (lab.get("nbgen/api/v1/model")["status"] or {}).get("running", 0)


def grows(text: Locator) -> None:
    """Wait until a text has been seen at several lengths."""
    lengths: set[int] = set()

    def several() -> bool:
        lengths.add(len(text.inner_text()))
        return len(lengths) > 3

    until(several)


def until(condition: Callable[[], object]) -> None:
    """Wait until it holds. What a page tells us of itself, as its requests, is only heard where the page is asked."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "still not so"
        time.sleep(0.05)
