"""The panel for those who do not see it, do without a mouse, or have little room: names, keys, what is read out."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

import nbgen
from tests.browser.lab import Lab, Notebook
from tests.browser.panel import Panel, until
from tests.browser.test_conversation import answer_with

CHAT = "import nbgen\nnbgen.Chat(max_new_tokens=8)"
CODE = "import nbgen\nnbgen.Chat(regex='```py\\n[a-z]*', min_new_tokens=20_000, max_new_tokens=20_000)"
BAR = f"from nbgen.notebook import display\ndisplay.ProgressLine().show('rows', 0.3)\n{CHAT}"
WIDE = "wide " * 100
MARKDOWN = f"""```python
short
```

```
{WIDE}
```

| {WIDE.replace(" ", "_")} | b |
|---|---|
| 1 | 2 |

[link](https://example.org)
"""
#: From now on, all that is read out of an answer.
ALOUD = """() => {
    const place = document.querySelector(".nbgen [aria-live=polite]");
    const said = [];
    new MutationObserver(() => said.push(place.textContent)).observe(place, { childList: true });
    return said;
}"""
READY = "Answer ready, 9 tokens"
CSS = (Path(nbgen.__file__).parent / "notebook" / "static" / "panel.css").read_text()
PANEL = """<div class="nbgen nbgen-sized nbgen-in-notebook" style="--height: 300px">
<details class="nbgen-settings" open>Options</details>
<div class="nbgen-log"><div class="nbgen-call-body"><pre>{}</pre></div>
<button class="nbgen-insert nbgen-quiet">Insert</button></div></div>"""


@pytest.fixture
def opened(lab: Lab, page: Page, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    cell = getattr(request, "param", CHAT)
    notebook = Notebook.of(page, lab, cell)
    notebook.run(0)
    yield notebook
    notebook.leave()


def narrow(page: Page) -> None:
    """As on a page of 320 pixels, or a larger one that is magnified."""
    page.locator(".nbgen").evaluate("panel => { panel.style.width = '270px'; }")


def right(element: Locator) -> float:
    box = element.bounding_box()
    assert box is not None
    return box["x"] + box["width"]


def test_what_is_too_wide_is_reached_by_keys_buttons_are_in_sight_and_a_copy_is_told(
    opened: Notebook, panel: Panel, page: Page
) -> None:
    answer_with(page, MARKDOWN)
    aloud = page.evaluate_handle(ALOUD)
    panel.ask("hello")
    expect(panel.status).to_have_text(READY)
    until(lambda: len(aloud.json_value()) == 2)
    assert [words in aloud.json_value()[0] for words in ("short", "link", "Copy")] == [True, True, False]
    assert aloud.json_value()[1] == "", "once, and nobody finds it twice"
    expect(panel.answers.get_by_role("link")).to_have_css("text-decoration-line", "underline")
    code = panel.answers.get_by_role("group", name="Code", exact=True)
    expect(code).to_have_attribute("tabindex", "0")
    expect(panel.answers.get_by_role("group", name="Table", exact=True)).to_have_attribute("tabindex", "0")
    code.focus()
    code.press("ArrowRight")
    until(lambda: code.evaluate("code => code.scrollLeft"))
    expect(code).to_have_css("outline-offset", "-2px")  # else its box would cut it off
    expect(panel.answers.get_by_role("group", name="Code, python")).not_to_have_attribute("tabindex", "0")

    narrow(page)
    copy = panel.answers.get_by_role("button", name="Copy code").first
    assert right(copy) <= right(panel.answers.locator(".nbgen-code").first)

    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    try:
        copy.press("Enter")
        expect(panel.status).to_have_text("Copied")
        expect(copy).to_be_focused()
    finally:
        page.evaluate("delete navigator.clipboard")

    page.evaluate("document.body.style.setProperty('--jp-content-font-size1', '28px')")
    page.get_by_text("Options", exact=True).click()
    fields = page.locator(".nbgen-row, .nbgen-fields label")
    assert fields.evaluate_all("all => all.every((one) => one.scrollWidth <= one.clientWidth)")
    assert panel.message.bounding_box()["height"] > 40, "a line of such letters"
    page.evaluate("document.body.removeAttribute('style')")

    page.unroute_all()
    answer_with(page, "long " * 1001)
    panel.ask("again")
    expect(panel.answers.last).to_contain_text("long")
    expect(panel.status).to_have_text(READY)
    assert len(aloud.json_value()) == 2, "nobody has to listen for so long"


@pytest.mark.parametrize("opened", [CODE], indirect=True)
def test_code_that_is_being_written_keeps_the_focus_and_stays_where_it_was_moved(
    opened: Notebook, panel: Panel, page: Page
) -> None:
    panel.ask("hello")
    code = panel.answers.get_by_role("group", name="Code, py")
    expect(code).to_have_attribute("tabindex", "0")
    code.evaluate("code => { code.scrollLeft = 30; }")
    copy = panel.answers.get_by_role("button", name="Copy code")
    copy.focus()
    panel.goes_on()
    expect(copy).to_be_focused()
    assert code.evaluate("code => code.scrollLeft") == 30
    panel.stop.click()
    expect(panel.status).to_have_text("Stopped")


@pytest.mark.parametrize("opened", [BAR], indirect=True)
def test_a_bar_has_its_words_as_its_name_and_loading_is_not_read_out_step_by_step(panel: Panel, page: Page) -> None:
    expect(page.get_by_role("progressbar", name="rows · 30%")).to_be_visible()

    def fulfil(route: Route) -> None:
        run = route.request.post_data_json["start"]["id"]
        step = {"run": run, "seq": 1, "stage": "weights", "done": 42, "total": 100}
        route.fulfill(content_type="text/event-stream", body=f"event: progress\ndata: {json.dumps(step)}\n\n")

    page.route("**/api/v1/subscribe", fulfil, times=1)
    shares: Locator = page.locator(".nbgen-loading")
    seen = shares.evaluate_handle(
        "(place) => { const seen = []; new MutationObserver(() => seen.push(place.textContent))"
        ".observe(place, { childList: true, subtree: true }); return seen; }"
    )
    said = panel.hears()
    panel.ask("hello")
    until(lambda: "Loading model" in said())
    assert not [words for words in said() if "%" in words]
    assert seen.json_value() == ["42%"]
    expect(panel.answers.get_by_role("alert")).to_be_visible()


def test_nothing_moves_for_those_who_want_it_so(browser: Browser) -> None:
    page = browser.new_page(reduced_motion="reduce")
    page.set_content(
        f'<style>{CSS}</style><div class="nbgen"><div class="nbgen-live"><p class="nbgen-text"></p></div></div>'
    )
    waiting = page.locator("p").evaluate("text => getComputedStyle(text, '::before').animationName")
    assert waiting == "none"
    page.close()


def test_on_paper_is_all_of_a_conversation_and_nothing_to_press(browser: Browser) -> None:
    page = browser.new_page()
    page.set_content(f"<style>{CSS}</style>{PANEL.format('line<br>' * 100)}")
    cut = page.locator(".nbgen, .nbgen-log, pre")
    pressed = page.locator(".nbgen-insert, .nbgen-settings")
    for media, shown in (("screen", 2), ("print", 0)):
        page.emulate_media(media=media)
        expect(pressed.filter(visible=True)).to_have_count(shown)
    assert cut.evaluate_all("all => all.every((one) => one.scrollHeight <= one.clientHeight + 4)")
    assert cut.first.bounding_box()["height"] > 1000
    expect(cut.first).to_have_css("overflow", "visible")  # or Firefox cuts lines where a page ends
    page.close()
