"""The chat panel as a person uses it: typed into, watched, stopped, reloaded, with a kernel that is busy."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import RUNS, STATUS, Lab, Notebook
from tests.browser.panel import Panel, running, until
from tests.soak import soaking

CHAT = "import nbgen\nchat = nbgen.Chat(max_new_tokens={tokens}, ignore_eos=True{more})\nchat"
#: The other panels.
OTHERS = (
    "display(nbgen.Stream('Once', max_new_tokens=4, ignore_eos=True))\n"
    "nbgen.compare('hello', temperature=[0, 1], max_new_tokens=4, ignore_eos=True)"
)

#: What a page has of its notebook.
MODEL = "window.jupyterapp.shell.currentWidget.context.model"
#: A page that is no longer in sight, or is again: in a browser without a screen all of them are.
AWAY = """away => {
    Object.defineProperty(document, "hidden", { value: away, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture
def opened(lab: Lab, page: Page, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    """A notebook whose first cell shows a panel; the test's marker says how long its answers are."""
    options = getattr(request, "param", {})
    chat = CHAT.format(tokens=options.get("tokens", 20_000), more=options.get("more", ""))
    notebook = Notebook.of(page, lab, chat, "import time\ntime.sleep(600)")
    notebook.run(0)
    yield notebook
    notebook.leave()


def test_text_arrives_and_stops_while_the_kernel_is_busy_and_goes_on_while_it_starts_again(
    lab: Lab, opened: Notebook, panel: Panel, page: Page
) -> None:
    panel.ask("warm up")
    expect(panel.status).to_have_text("Generating")
    panel.stop.click()
    expect(panel.status).to_have_text("Stopped")
    opened.run(1, wait=False)
    page.wait_for_function(f"{STATUS} === 'busy'")

    panel.message.fill("hello")
    panel.send.dblclick()
    expect(panel.stop).to_be_visible()
    panel.grows()
    expect(opened.prompt(1)).to_have_text(RUNS)
    panel.ask("next")
    expect(panel.status).to_have_text("Still writing: Escape stops it")
    expect(panel.message).to_have_value("next")

    panel.message.press("Escape")
    expect(panel.send).to_be_visible()
    expect(opened.prompt(1)).to_have_text(RUNS)
    expect(panel.status).to_have_text("Stopped")
    expect(panel.answers.last).to_contain_text("stopped")
    until(lambda: running(lab) == 0)

    panel.ask("once more")
    until(lambda: panel.length() > 100)
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    page.wait_for_function(f"{STATUS} === 'idle'")
    panel.goes_on()
    panel.stop.click()
    expect(panel.status).to_have_text("Stopped")
    until(lambda: running(lab) == 0)


def reads_on(page: Page, panel: Panel) -> None:
    """The page shows the conversation, and its answer from the beginning on, until it is stopped there."""
    expect(panel.stop).to_be_visible()
    expect(page.get_by_role("article", name="You")).to_contain_text("tell me **everything**")
    until(lambda: panel.length() > 200)
    before = panel.length()
    until(lambda: panel.length() > before)
    panel.stop.click()
    expect(panel.status).to_have_text("Stopped")


@pytest.mark.soak
def test_a_reload_shows_the_conversation_and_reads_on(lab: Lab, opened: Notebook, panel: Panel, page: Page) -> None:
    panel.ask("tell me **everything**")
    until(lambda: panel.length() > 200)
    opened.command("docmanager:save")
    opened.reload()
    reads_on(page, panel)


def test_a_second_tab_reads_what_is_being_written_and_both_show_one_conversation(
    opened: Notebook, page: Page, lab: Lab
) -> None:
    panel = Panel(opened.cell(0))
    page.evaluate(f"source => {MODEL}.sharedModel.getCell(1).setSource(source)", OTHERS)
    opened.run(1)
    expect(opened.output(1)).to_contain_text("2 answers ready")
    panel.ask("tell me **everything**")
    until(lambda: panel.length() > 100)
    opened.command("docmanager:save")
    other = page.context.new_page()
    other.goto(page.url.replace("/workspaces/tests/", "/workspaces/second/"))
    Notebook(other).settled()
    second = Panel(Notebook(other).cell(0))
    reads_on(other, second)
    expect(panel.status).to_have_text("Stopped")
    run = lab.get(f"nbgen/api/v1/chats/{opened.kernel_value('chat.chat')}")["run"]
    shown = other.evaluate("document.querySelector('.nbgen-text').textContent.replace(/\\s/g, '').length")
    assert run["finish_reason"]["type"] == "abort"
    assert shown > 0.5 * len("".join(run["text"].split()))
    grids = [where.get_by_role("region", name="Comparison") for where in (page, other)]
    grids[0].get_by_role("textbox").fill("others")
    grids[0].get_by_role("textbox").press("Enter")
    expect(grids[0].get_by_role("status")).to_have_text("2 answers ready")
    expect(grids[1].get_by_role("textbox")).to_have_value("others")
    texts = grids[0].locator(".nbgen-text")
    expect(grids[1].locator(".nbgen-text")).to_have_text(texts.all_text_contents())
    page.get_by_role("button", name="Continue", exact=True).click()
    for where in (page, other):
        expect(where.get_by_role("listbox", name="Tokens").get_by_role("option")).to_have_count(4)
    second.message.fill("a draft")
    other.get_by_role("button", name="Edit message").click()
    edited = other.get_by_label("Edited message")
    edited.fill("eins")
    other.evaluate(f"{MODEL}.dirty = false")
    panel.ask("two")
    until(lambda: second.answers.count() == 2 and second.length() > 100)
    panel.stop.click()
    expect(second.status).to_have_text("Stopped")
    assert not other.evaluate(f"{MODEL}.dirty"), "what the first window keeps"

    other.evaluate(AWAY, True)
    panel.ask("three")
    until(lambda: panel.answers.count() == 3 and panel.length() > 100)
    expect(second.answers).to_have_count(2)
    other.evaluate(AWAY, False)
    until(lambda: second.answers.count() == 3 and second.length() > 100)
    second.stop.click()
    expect(panel.status).to_have_text("Stopped")
    expect(edited).to_have_value("eins")
    edited.press("Enter")
    expect(panel.answers).to_have_count(1)
    expect(panel.stop).to_be_visible()
    expect(page.locator(".nbgen-versions").first).to_contain_text("2/2")
    expect(second.message).to_have_value("a draft")
    panel.stop.click()
    expect(second.status).to_have_text("Stopped")
    other.close()


@pytest.mark.parametrize("opened", [{"tokens": 12}], indirect=True)
def test_keys_and_turns(opened: Notebook, panel: Panel, page: Page) -> None:
    panel.message.click()
    page.keyboard.type("dd abc")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("xy")
    expect(panel.message).to_have_value("dd abc\nxy")
    page.keyboard.press("Enter")
    expect(panel.status).to_have_text("Answer ready, 12 tokens")
    expect(panel.message).to_have_value("")
    expect(panel.message).to_be_focused()
    expect(page.get_by_role("article", name="You")).to_contain_text("dd abc\nxy")
    page.locator(".nbgen-name").click()  # which takes no focus, as no button in Safari
    expect(page.get_by_role("region", name="Chat")).to_be_focused()
    panel.ask("second")
    expect(panel.answers).to_have_count(2)
    expect(panel.status).to_have_text("Answer ready, 12 tokens")
    assert "['user', 'assistant', 'user', 'assistant']" in opened.kernel_value(
        "[turn['role'] for turn in chat.messages]"
    )
    opened.kernel_value("chat.ask('from Python')")
    expect(page.get_by_role("article", name="You").last).to_contain_text("from Python")
    expect(panel.answers.nth(2)).to_contain_text("12 tokens")
    panel.message.press("Shift+ArrowUp")
    expect(panel.message).to_be_focused()
    panel.message.fill("a draft")
    panel.message.press("Control+s")
    page.wait_for_function("!window.jupyterapp.shell.currentWidget.context.model.dirty")
    kept = "Object.keys(window.jupyterapp.shell.currentWidget.context.model.metadata.nbgen.chats)"
    assert page.evaluate(kept) == [opened.kernel_value("chat.chat")]
    transcript = page.locator("summary").get_by_text("Transcript:")
    expect(transcript).to_have_count(1)
    page.get_by_role("button", name="New chat").click()
    expect(panel.answers).to_have_count(0)
    expect(transcript).to_have_count(0)
    expect(panel.message).to_be_focused()
    expect(panel.message).to_have_value("a draft")
    assert page.evaluate(kept) == []
    page.get_by_role("button", name="New chat").click()  # nothing to give way to
    page.get_by_role("button", name="Back to the conversation before").click()
    expect(panel.answers).to_have_count(3)
    expect(panel.message).to_be_focused()
    expect(panel.message).to_have_value("a draft")
    expect(transcript).to_have_count(1)
    assert page.evaluate(kept) == [opened.kernel_value("chat.chat")]
    view = page.locator(".nbgen").element_handle()
    opened.run(0)
    page.get_by_role("button", name="Back to the conversation before").click()
    expect(panel.answers).to_have_count(3)
    assert view.evaluate("panel => panel.parentElement.parentElement === null"), "else ipywidgets would keep it"
    assert page.evaluate(kept) == [opened.kernel_value("chat.chat")]
    panel.message.click(button="right")
    expect(page.locator(".lm-Menu")).to_have_count(0)


@pytest.mark.parametrize("opened", [{"tokens": 12, "more": ", temperature=0"}], indirect=True)
def test_a_failure_and_a_server_that_is_gone_are_said_in_words_and_tried_again(panel: Panel, page: Page) -> None:
    """And open options leave the conversation its place."""
    page.route("**/api/v1/subscribe", lambda route: route.fulfill(status=503, body='{"error": {"message": "full"}}'))
    panel.ask("hello")
    expect(page.get_by_role("alert")).to_contain_text("full")
    page.unroute("**/api/v1/subscribe")
    page.get_by_role("button", name="Retry").click()
    expect(panel.status).to_have_text("Answer ready, 12 tokens")
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(panel.answers).to_have_count(1)

    before = panel.answers.last.bounding_box()
    options = page.get_by_text("Options", exact=True)
    options.click()
    box = page.get_by_role("textbox", name="System prompt").bounding_box()
    end = page.get_by_role("region", name="Chat").bounding_box()
    assert panel.answers.last.bounding_box() == before
    assert box["y"] + box["height"] < end["y"] + end["height"]
    options.click()

    page.route("**/nbgen/api/v1/**", lambda route: route.abort())
    said = panel.hears()
    panel.ask("gone")
    until(lambda: "Reconnecting" in said())
    page.unroute("**/nbgen/api/v1/**")
    expect(panel.answers.nth(1)).to_contain_text("12 tokens")


@pytest.mark.parametrize("opened", [{"tokens": 8}, soaking({"tokens": 8, "more": ', transport="comm"'})], indirect=True)
def test_released_memory_is_said_and_resumed(lab: Lab, opened: Notebook, panel: Panel, page: Page) -> None:
    panel.ask("one")
    expect(panel.status).to_have_text("Answer ready, 8 tokens")
    lab.post("nbgen/release_memory_occupation")
    panel.ask("two")
    notice = page.get_by_role("alert").filter(has_text="nothing can be generated")
    expect(notice).to_be_visible()
    resume = page.get_by_role("button", name="Resume", exact=True)
    resume.click()
    expect(resume).to_be_hidden()
    expect(panel.message).to_be_focused()
    page.get_by_role("button", name="Retry").click()
    expect(panel.answers.nth(1)).to_contain_text("8 tokens")
    lab.post("nbgen/release_memory_occupation")
    panel.ask("three")
    expect(notice).to_be_visible()
    lab.post("nbgen/resume_memory_occupation")
    expect(notice).to_be_hidden()


@pytest.mark.parametrize("opened", [{"more": ", height=240"}], indirect=True)
def test_a_growing_answer_leaves_reader_and_focus_alone(opened: Notebook, panel: Panel, page: Page) -> None:
    said = panel.hears()
    panel.message.fill("hello")
    panel.send.focus()
    page.keyboard.press("Enter")
    expect(panel.stop).to_be_focused()
    until(lambda: panel.length() > 800)
    expect(panel.stop).to_be_focused()
    below = "log => log.scrollHeight - log.scrollTop - log.clientHeight"
    log = page.get_by_role("log", name="Conversation")
    until(lambda: log.evaluate(below) < 40)
    log.evaluate("log => { log.scrollTop = 0; }")
    page.get_by_text("Options", exact=True).focus()
    panel.goes_on()
    assert log.evaluate("log => log.scrollTop") == 0
    expect(page.get_by_text("Options", exact=True)).to_be_focused()
    back = page.get_by_role("button", name="To the end")
    back.click()
    until(lambda: log.evaluate(below) < 1)
    expect(log).to_be_focused()
    expect(back).to_be_hidden()
    log.hover()
    for up in (lambda: page.mouse.wheel(0, -5), lambda: log.press("ArrowUp")):
        up()
        panel.goes_on()
        until(lambda: log.evaluate(below) > 40)
        log.press("End")
        until(lambda: log.evaluate(below) < 1)
    panel.stop.focus()
    page.keyboard.press("Enter")
    expect(panel.send).to_be_focused()
    expect(panel.status).to_have_text("Stopped")
    spoken = [words for words in said() if not words.startswith("Loading")]
    assert len(spoken) < 8, "a screen reader reads every change"
    assert "Generating" in spoken
    assert page.locator(".nbgen [aria-live]:not([aria-live=off])").all_text_contents() == [""]


def test_panels_share_one_connection(lab: Lab, page: Page, listen: Callable[..., None]) -> None:
    notebook = Notebook.of(page, lab, *[CHAT.format(tokens=20_000, more="")] * 3)
    notebook.run_all()
    streams: set[object] = set()
    listen("request", lambda request: streams.add(request) if "subscribe" in request.url else None)
    listen("requestfinished", lambda request: streams.discard(request))
    listen("requestfailed", lambda request: streams.discard(request))
    panels = [Panel(notebook.cell(index)) for index in range(3)]
    for panel in panels:
        panel.ask("hello")
    for panel in panels:
        expect(panel.status).to_have_text("Generating")
    until(lambda: panels[0].status.is_visible() and len(streams) == 1)  # aborted ones may be on their way out
    for panel in panels:
        panel.stop.click()
        expect(panel.status).to_have_text("Stopped")
    notebook.leave()


@pytest.mark.parametrize("opened", [{"tokens": 60}], indirect=True)
def test_it_follows_the_theme(opened: Notebook, panel: Panel, page: Page, tmp_path: Path) -> None:
    panel.ask("hello")
    expect(panel.status).to_have_text("Answer ready, 60 tokens")
    back = "getComputedStyle(document.querySelector('.nbgen')).backgroundColor"
    page.screenshot(path=tmp_path / "light.png")
    assert page.evaluate(back) == "rgb(255, 255, 255)"
    opened.command("apputils:change-theme", theme="JupyterLab Dark")
    page.wait_for_selector("body[data-jp-theme-light='false']", state="attached")
    page.wait_for_function(f"{back} !== 'rgb(255, 255, 255)'")
    page.locator("#jupyterlab-splash").wait_for(state="detached")
    page.screenshot(path=tmp_path / "dark.png")
    assert page.evaluate("getComputedStyle(document.querySelector('.nbgen')).colorScheme") == "dark"
    page.evaluate("document.body.style.setProperty('--jp-content-font-size1', '20px')")
    expect(panel.answers.last.locator(".nbgen-text")).to_have_css("font-size", "20px")
    page.evaluate("document.body.removeAttribute('style')")
