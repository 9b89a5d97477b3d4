"""The completion panel with its token view, and settings side by side, by mouse and by keyboard."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import Lab, Notebook
from tests.browser.panel import until

STREAM = "import nbgen\nstream = nbgen.Stream('Once', max_new_tokens=12, ignore_eos=True, temperature=0)\nstream"
OTHER_KIND = (
    "import nbgen\nown = nbgen.connect()\n"
    "nbgen.connect(own.url, own.token, kind='openai')\n"
    "nbgen.Stream('Once', max_new_tokens=12, ignore_eos=True, temperature=0)"
)
LONG = "max_new_tokens=400, ignore_eos=True, temperature=0"
COMPARE = (
    "import nbgen\ngrid = nbgen.compare('hello', temperature=[0, 1], sampling_seed=[1, 2],"
    " max_new_tokens=20, ignore_eos=True)\ngrid"
)

#: Whether a comparison's label, which says what the setting is, stays in sight while its cell is scrolled.
SCROLLED = """label => {
    const cell = label.parentElement;
    cell.style.cssText = "min-height: 0; max-height: 40px";
    cell.scrollTop = 30;
    const moved = cell.scrollTop, [own, box] = [label, cell].map((one) => one.getBoundingClientRect());
    cell.style.cssText = "";
    return moved === 30 && own.height > 0 && Math.abs(own.top - box.top) < 2;
}"""


@pytest.fixture
def opened(lab: Lab, page: Page, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    notebook = Notebook.of(page, lab, *request.param)
    notebook.run(0)
    yield notebook
    notebook.leave()


@pytest.mark.parametrize("opened", [[STREAM]], indirect=True)
def test_another_token_can_be_chosen_by_keys_or_by_mouse_and_undone(opened: Notebook, page: Page) -> None:
    """And where the system chooses colours, a line marks the token looked at."""
    expect(page.get_by_role("textbox", name="Prompt")).to_have_value("Once")
    expect(page.get_by_role("button", name="Copy text")).to_be_hidden()
    expect(page.get_by_text("Point at a token")).to_be_hidden()
    page.get_by_role("button", name="Continue", exact=True).click()
    status = page.locator(".nbgen").get_by_role("status")
    expect(status).to_have_text("Text ready, 12 tokens")
    expect(page.get_by_text("Point at a token")).to_be_visible()
    view = page.get_by_role("listbox", name="Tokens")
    tokens = view.get_by_role("option")
    expect(tokens).to_have_count(12)
    before = tokens.all_text_contents()
    said = view.locator(".nbgen-token:not(.nbgen-part)").all_text_contents()
    assert "".join(said) == opened.kernel_value("stream.text").removeprefix("Once")

    expect(page.get_by_role("button", name="Copy text")).to_have_css("opacity", "1")
    tokens.nth(3).hover()
    box = page.get_by_role("group", name="Alternatives")
    expect(box.get_by_role("button")).to_have_count(6)
    expect(tokens.nth(3)).to_have_attribute("aria-selected", "true")
    page.emulate_media(forced_colors="active")
    expect(tokens.nth(3)).to_have_css("outline-style", "solid")
    expect(tokens.nth(2)).to_have_css("outline-style", "none")
    assert page.locator(".nbgen-legend span").last.inner_text() == "\u00a0", "which a line can be drawn under"
    page.emulate_media(forced_colors="null")
    view.focus()
    view.press("ArrowRight")
    expect(tokens.nth(4)).to_have_attribute("aria-selected", "true")
    view.press("ArrowDown")
    view.press("ArrowDown")
    with page.expect_request("**/api/v1/subscribe") as sent:
        view.press("Enter")
    prefix = sent.value.post_data_json["start"]["prefix_ids"]
    assert len(prefix) == 5, "four tokens stay, the fifth is another"
    expect(status).to_have_text("Text ready, 12 tokens")
    expect(tokens).to_have_count(5 + 12)
    assert tokens.all_text_contents()[:4] == before[:4]
    assert tokens.all_text_contents()[4] != before[4]

    page.get_by_role("button", name="Back to the text before").click()
    assert tokens.all_text_contents() == before
    tokens.nth(1).hover()
    with page.expect_request("**/api/v1/subscribe") as sent:
        box.get_by_role("button").nth(1).click()
    assert len(sent.value.post_data_json["start"]["prefix_ids"]) == 2
    expect(tokens).to_have_count(2 + 12)
    expect(view).to_be_focused()
    page.get_by_role("button", name="Go on where it ended").click()
    expect(tokens).to_have_count(2 + 12 + 12)
    expect(status).to_have_text("Text ready, 12 tokens")

    prompt, text = page.get_by_role("textbox", name="Prompt"), view.inner_text()
    prompt.fill("Never")
    prompt.press("Enter")
    expect(tokens).to_have_count(12)
    expect(status).to_have_text("Text ready, 12 tokens")
    page.get_by_role("button", name="Back to the text before").click()
    assert view.inner_text() == text
    expect(prompt).to_have_value("Once")
    expect(prompt).to_be_focused()


@pytest.mark.parametrize("opened", [[OTHER_KIND]], indirect=True)
def test_a_server_that_tells_of_no_tokens_has_its_text_shown_and_undone(opened: Notebook, page: Page) -> None:
    prompt, view = page.get_by_role("textbox", name="Prompt"), page.get_by_role("listbox", name="Tokens")
    status = page.locator(".nbgen").get_by_role("status")
    prompt.press("Enter")
    expect(status).to_have_text("Text ready, 12 tokens")
    text = view.inner_text()
    assert text.startswith("Once")
    assert len(text) > len("Once")
    expect(view.get_by_role("option")).to_have_count(0)
    prompt.fill("Never")
    prompt.press("Enter")
    expect(view).to_contain_text("Never")
    expect(status).to_have_text("Text ready, 12 tokens")
    page.get_by_role("button", name="Back to the text before").click()
    assert view.inner_text() == text
    opened.end_kernel()  # which others would find connected to that server


@pytest.mark.parametrize("opened", [["import nbgen\nnbgen.Stream('Once', adapter='nobody')"]], indirect=True)
def test_an_adapter_goes_with_every_run(opened: Notebook, page: Page) -> None:
    page.get_by_role("button", name="Continue", exact=True).click()
    expect(page.locator(".nbgen").get_by_role("alert")).to_contain_text("'nobody' has never been loaded")


@pytest.mark.parametrize("opened", [[f"import nbgen\nnbgen.Stream('Once', {LONG})"]], indirect=True)
def test_in_a_small_panel_nothing_covers_the_text_and_its_end_is_seen(opened: Notebook, page: Page) -> None:
    view, box = page.get_by_role("listbox", name="Tokens"), page.get_by_role("group", name="Alternatives")
    for height, width in ((440, 240), (300, 330)):
        page.locator(".nbgen").evaluate(
            "(panel, size) => { panel.style.cssText = size; }", f"height:{height}px;width:{width}px"
        )
        with page.expect_request("**/api/v1/subscribe"):
            page.get_by_role("textbox", name="Prompt").press("Enter")
        expect(page.locator(".nbgen").get_by_role("status")).to_have_text("Text ready, 400 tokens")
        at_end = (
            "view => view.clientHeight < view.parentNode.parentNode.clientHeight"  # it scrolls, not what it is in
            " && view.clientHeight < view.scrollHeight"
            " && view.scrollHeight - view.clientHeight - view.scrollTop < 1"
        )
        page.wait_for_function(at_end, arg=view.element_handle())  # scrolled once its new size is drawn
        tops = [part.bounding_box() for part in (view, box, page.locator(".nbgen-foot"))]
        assert all(above["y"] + above["height"] <= below["y"] for above, below in pairwise(tops)), tops


@pytest.mark.soak
def test_models_answer_side_by_side_wherever_they_are_served(
    lab: Lab, page: Page, long_model: Path, tiny_model: Path
) -> None:
    """Two servers at once, one of them reached through the kernel; then one server that loads one after the other."""
    options = "max_new_tokens=8, ignore_eos=True, temperature=0"
    cells = [
        f"import nbgen\nown = nbgen.connect()\nother = nbgen.serve({str(tiny_model)!r})\nnbgen.connect()",
        f"grid = nbgen.compare('hello', model={{'own': own, 'other': other}}, {options})\ngrid",
        "other.stop()",
        f"grid = nbgen.compare('hello', model=[{str(tiny_model)!r}, '/no/such', {str(long_model)!r}], {options})\ngrid",
    ]
    notebook = Notebook.opened(page, lab, lab.write("models.ipynb", *cells))
    own, other = (page.get_by_role("region", name=name, exact=True).get_by_role("article") for name in ("own", "other"))
    notebook.run(0)
    notebook.run(1)
    expect(page.locator(".nbgen").get_by_role("status")).to_have_text("2 answers ready")
    texts = [answer.locator(".nbgen-text").inner_text() for answer in (own, other)]
    assert texts[0] != texts[1]
    assert notebook.kernel_value("[r.usage['completion_tokens'] for r in grid.results]") == "[8, 8]"
    notebook.command("docmanager:save")
    notebook.reload()
    expect(page.locator(".nbgen").get_by_role("status")).to_have_text("2 answers ready")
    assert [answer.locator(".nbgen-text").inner_text() for answer in (own, other)] == texts

    notebook.run(2)
    notebook.run(3)
    expect(page.locator(".nbgen").get_by_role("status").last).to_have_text("2 answers ready, 1 failed")
    expect(page.get_by_role("region", name=tiny_model.name, exact=True)).to_contain_text("8 tokens")
    expect(page.get_by_role("region", name="such", exact=True).get_by_role("alert")).to_contain_text("no folder")
    expect(page.get_by_role("region", name=long_model.name, exact=True)).to_contain_text("8 tokens")
    assert notebook.kernel_value("nbgen.status().raw['name']") == str(long_model)
    notebook.shut_down()


@pytest.mark.parametrize("opened", [[COMPARE, STREAM]], indirect=True)
def test_settings_stream_side_by_side_and_are_there_when_the_notebook_is_opened_again_as_a_continuation_is(
    opened: Notebook, page: Page
) -> None:
    status, stream_status = (opened.cell(index).locator(".nbgen").get_by_role("status") for index in range(2))
    expect(status).to_have_text("4 answers ready")
    answers = [
        page.get_by_role("region", name=f"temperature {heat} · sampling_seed {seed}").get_by_role("article")
        for heat in (0, 1)
        for seed in (1, 2)
    ]
    texts = [answer.locator(".nbgen-text").inner_text() for answer in answers]
    label = page.locator(".nbgen-label").first
    label.scroll_into_view_if_needed()
    until(lambda: label.evaluate(SCROLLED))  # JupyterLab lays a cell out once it is in sight
    assert texts[0] == texts[1], "without chance the seed changes nothing"
    assert texts[2] != texts[3]
    page.locator(".nbgen").evaluate("panel => { panel.style.width = '300px'; }")
    assert len({answer.bounding_box()["x"] for answer in answers}) == 1, "a narrow panel has one column"
    for answer in answers:
        expect(answer).to_contain_text("20 tokens")
    assert opened.kernel_value("[r.usage['completion_tokens'] for r in grid.results]") == "[20, 20, 20, 20]"
    expect(page.get_by_text("Comparison: 4 answers")).to_be_visible()
    opened.run(1)
    page.get_by_role("button", name="Continue", exact=True).click()
    tokens = page.get_by_role("listbox", name="Tokens").get_by_role("option")
    expect(stream_status).to_have_text("Text ready, 12 tokens")
    expect(page.get_by_text("Text", exact=True)).to_be_visible()
    continued = tokens.all_text_contents()
    opened.command("docmanager:save")
    opened.again()
    expect(page.get_by_text("Comparison: 4 answers")).to_be_visible()
    expect(status).to_have_text("4 answers ready")
    assert [answer.locator(".nbgen-text").inner_text() for answer in answers] == texts
    expect(tokens).to_have_count(12)
    assert tokens.all_text_contents() == continued
