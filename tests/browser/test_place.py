"""A panel whose place changes while it is read: narrower, out of the page, and back."""

from playwright.sync_api import Page, ViewportSize, expect

from tests.browser.conftest import VIEWPORT
from tests.browser.lab import Lab, Notebook
from tests.browser.panel import Panel, running, until
from tests.browser.test_conversation import answer_with

CHAT = "import nbgen\nnbgen.Chat(max_new_tokens=1500, ignore_eos=True)"
#: A server of another kind keeps no chats.
OTHER_KIND = f"""import nbgen
own = nbgen.connect()
nbgen.connect(own.url, own.token, kind="openai")
{CHAT.splitlines()[1]}"""
BESIDE = "import ipywidgets, nbgen\nipywidgets.HBox([nbgen.Chat(height=220), nbgen.Chat(height=220)])"
BELOW = "log => log.scrollHeight - log.scrollTop - log.clientHeight"
#: Until the page has been drawn twice.
FRAMES = "() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))"
NARROW = ViewportSize(width=600, height=900)


def test_the_end_stays_in_sight_where_a_panel_becomes_narrower_or_is_hidden_for_a_while(lab: Lab, page: Page) -> None:
    notebook = Notebook.of(page, lab, CHAT)
    notebook.run(0)
    panel, log = Panel(page), page.get_by_role("log", name="Conversation")
    back = page.get_by_role("button", name="To the end")
    panel.ask("hello")
    panel.grows()
    notebook.command("notebook:hide-cell-outputs")
    expect(page.locator(".jp-OutputPlaceholder")).to_have_text("The chat panel")
    until(lambda: running(lab) == 0)
    notebook.command("notebook:show-cell-outputs")
    expect(panel.status).to_have_text("Answer ready, 1500 tokens")
    until(lambda: log.evaluate(BELOW) < 1)
    try:
        wide = log.evaluate("log => log.scrollHeight")
        page.set_viewport_size(NARROW)
        until(lambda: log.evaluate("log => log.scrollHeight") > wide)
        until(lambda: log.evaluate(BELOW) < 1)
    finally:
        page.set_viewport_size(VIEWPORT)
    until(lambda: log.evaluate("log => log.scrollHeight") == wide)
    expect(back).to_be_hidden()
    log.hover()
    page.mouse.wheel(0, -200)
    until(lambda: log.evaluate(BELOW) == 200)
    notebook.command("notebook:hide-cell-outputs")
    page.evaluate(FRAMES)
    notebook.command("notebook:show-cell-outputs")
    until(lambda: log.evaluate(BELOW) == 200)
    expect(back).to_be_visible()
    notebook.leave()


def test_beside_other_widgets_it_keeps_its_width_whatever_is_written_in_it(lab: Lab, page: Page) -> None:
    notebook = Notebook.of(page, lab, BESIDE)
    notebook.run(0)
    panels = notebook.cell(0).get_by_role("region", name="Chat")
    expect(panels).to_have_count(2)
    boxes = [panels.nth(i).bounding_box() for i in (0, 1)]
    answer_with(page, f"```\n{'wide ' * 200}\n```")
    panel = Panel(panels.first)
    panel.ask("hello")
    expect(panel.answers).to_contain_text("9 tokens")
    assert [panels.nth(i).bounding_box() for i in (0, 1)] == boxes
    assert boxes[0]["width"] == boxes[1]["width"]
    notebook.leave()


def test_an_answer_goes_on_where_its_cell_is_moved_though_the_server_keeps_no_chats(lab: Lab, page: Page) -> None:
    notebook = Notebook.of(page, lab, "1", OTHER_KIND)
    notebook.run(1)
    panel = Panel(page)
    panel.ask("hello")
    panel.grows()
    notebook.command("notebook:move-cell-up")
    expect(panel.status).to_have_text("Answer ready, 1500 tokens")
    expect(panel.answers).to_contain_text("1500 tokens")
    expect(panel.answers.get_by_role("alert")).to_have_count(0)
    notebook.shut_down()  # its kernel would go on asking as OpenAI's clients do


def test_the_transcript_is_kept_up_to_date_where_the_page_was_loaded_again(lab: Lab, page: Page) -> None:
    """JupyterLab changes no output any more then that a cell displayed before."""
    notebook = Notebook.of(page, lab, CHAT.replace("1500", "4"))
    notebook.run(0)
    panel = Panel(page)
    for turn, question in enumerate(("one", "two"), 1):
        panel.ask(question)
        expect(panel.answers.nth(turn - 1)).to_contain_text("4 tokens")
        expect(notebook.output(0)).to_contain_text(f"Transcript: {2 * turn} messages")
        notebook.command("docmanager:save")
        notebook.reload()
    notebook.leave()


def test_so_are_those_of_a_text_and_of_a_comparison(lab: Lab, page: Page) -> None:
    options = "max_new_tokens=4, ignore_eos=True"
    cells = (f"import nbgen\nnbgen.Stream('one', {options})", f"nbgen.compare('one', temperature=[0, 1], {options})")
    notebook = Notebook.of(page, lab, *cells)
    notebook.run_all()
    expect(notebook.output(1)).to_contain_text("2 answers ready")
    notebook.command("docmanager:save")
    notebook.reload()
    for index, (button, prompt) in enumerate((("Continue", "two"), ("Run", "three"))):
        shown = notebook.output(index)
        shown.get_by_role("textbox", name="Prompt").fill(prompt)
        shown.get_by_role("button", name=button, exact=True).click()
        expect(shown.locator(".jp-RenderedMarkdown")).to_contain_text(prompt)
    notebook.leave()
