"""What a person does with a conversation: edits, branches, uses its code, closes the notebook and opens it again."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.lab import Lab, Notebook
from tests.browser.panel import Panel, until

CHAT = 'import nbgen\nhero = "fox"\nchat = nbgen.Chat("{name}", max_new_tokens=8, ignore_eos=True)\nchat'
READY = "Answer ready, 8 tokens"
MARKDOWN = """Euler wrote $e^{i\\pi} = -1$ and

$$\\frac{a}{b}$$

\\begin{align*}
c &= d
\\end{align*}

| a | b |
|---|---|
| 1 | 2 |

```python
print(1)
```
"""


@pytest.fixture
def opened(lab: Lab, page: Page, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    notebook = Notebook.of(page, lab, CHAT.format(name=request.node.originalname), "2 + 2")
    notebook.run(0)
    yield notebook
    notebook.leave()


def answer_with(page: Page, text: str, reasoning: str = "") -> None:
    """The next answers are `text`, after these thoughts, so that a test can say what they look like."""

    def fulfil(route: Route) -> None:
        run = route.request.post_data_json["start"]["id"]
        events = [
            ("delta", {"run": run, "seq": 1, "text": "", "tokens": 0, "reasoning": reasoning}),
            ("delta", {"run": run, "seq": 1, "text": text, "tokens": 9}),
            ("done", {"run": run, "seq": 1, "finish_reason": {"type": "stop"}, "usage": {"completion_tokens": 9}}),
        ]
        body = "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in events)
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/api/v1/subscribe", fulfil)


def test_regenerate_and_edit_make_branches_that_survive_as_thoughts_do(
    lab: Lab, opened: Notebook, panel: Panel, page: Page
) -> None:
    panel.ask("one")
    expect(panel.status).to_have_text(READY)
    first = panel.answers.first.locator(".nbgen-text").inner_text()
    panel.answers.first.hover()
    page.get_by_role("button", name="Regenerate answer").click()
    expect(panel.message).to_be_focused()
    expect(panel.answers.first).to_contain_text("2/2")
    expect(panel.status).to_have_text(READY)
    page.get_by_role("button", name="Previous version").click()
    expect(panel.answers.first).to_contain_text("1/2")
    expect(panel.answers.first.locator(".nbgen-text")).to_have_text(first, use_inner_text=True)

    panel.message.press("ArrowUp")
    edited = page.get_by_role("textbox", name="Edited message")
    expect(edited).to_have_value("one")
    edited.press("Escape")
    expect(page.get_by_role("button", name="Edit message")).to_be_focused()
    page.keyboard.press("Enter")
    edited.fill("two and more " * 20)
    assert edited.evaluate("area => area.scrollHeight <= area.clientHeight"), "all of it is seen"
    edited.fill(" ")
    edited.press("Enter")
    expect(panel.status).to_contain_text("The message is empty")
    edited.fill("two {{hero}}")
    edited.press("Enter")
    expect(edited).to_have_value("two fox")
    edited.press("Enter")
    expect(page.get_by_role("article", name="You")).to_contain_text("two")
    expect(panel.status).to_have_text(READY)
    expect(page.get_by_role("article", name="You")).to_contain_text("2/2")

    answer_with(page, "Four.", "Two and two:\n  **four**.")
    panel.ask("hello")
    expect(panel.status).to_have_text("Answer ready, 9 tokens")
    expect(panel.answers.last.locator(".nbgen-text")).to_have_text("Four.")
    thoughts = panel.answers.last.locator("details")
    expect(thoughts.get_by_text("**four**")).to_be_hidden()
    thoughts.get_by_text("Thoughts", exact=True).click()
    expect(thoughts.get_by_text("**four**")).to_be_visible()

    opened.command("docmanager:save")
    opened.again()
    expect(thoughts).to_contain_text("Two and two:")
    expect(page.get_by_role("article", name="You").first).to_contain_text("two")
    page.get_by_role("button", name="Previous version").click()
    expect(page.get_by_role("article", name="You")).to_contain_text("one")
    expect(panel.answers.first).to_contain_text("2/2")


def test_markdown_with_maths_tables_and_code_that_becomes_a_cell_and_each_paragraph_runs_as_its_own_letters_do(
    opened: Notebook, panel: Panel, page: Page
) -> None:
    answer_with(page, MARKDOWN)
    panel.ask("hello")
    expect(panel.status).to_have_text("Answer ready, 9 tokens")
    answer = panel.answers.first
    expect(answer.locator("math")).to_have_count(3)
    assert answer.locator("mfrac").bounding_box()["height"] > 20, "the formula is laid out"
    expect(answer.get_by_role("cell")).to_have_count(2)
    page.get_by_role("button", name="Insert code in a cell below").click()
    expect(opened.cell(1).locator(".jp-Editor")).to_have_text("print(1)")
    expect(opened.cell(2).locator(".jp-Editor")).to_have_text("2 + 2")
    expect(panel.status).to_have_text("Inserted in the cell below")
    page.evaluate("window.jupyterapp.shell.currentWidget.content.model.sharedModel.getCell(1).setSource('old')")
    page.get_by_role("button", name="Replace the cell below with this code").click()
    expect(opened.cell(1).locator(".jp-Editor")).to_have_text("print(1)")
    expect(opened.cell(2).locator(".jp-Editor")).to_have_text("2 + 2")
    expect(panel.status).to_have_text("Replaced the cell below")

    hebrew = "שלום"
    page.unroute_all()
    marked = f"- {hebrew}\n\n> {hebrew}\n\n| {hebrew} | a |\n|---|---|"
    answer_with(page, f"{hebrew} `print(1)` $x+1$\n\n{marked}\n\nLatin\n\n- Latin\n\n```\n{hebrew}\n```")
    panel.ask(hebrew)
    expect(panel.status).to_have_text("Answer ready, 9 tokens")
    side = """(element) => {
        const letters = document.createRange();
        letters.selectNodeContents(document.createTreeWalker(element, NodeFilter.SHOW_TEXT).nextNode());
        const [own, box] = [letters.getBoundingClientRect(), element.getBoundingClientRect()];
        return own.right > box.right - 5 ? "right" : own.left < box.left + 5 ? "left" : "middle";
    }"""
    text = panel.answers.last.locator(".nbgen-text")
    assert text.locator("> p").first.evaluate(side) == "right"
    assert text.get_by_role("listitem").first.evaluate(side) == "right"
    ways = "all => all.map((one) => getComputedStyle(one).direction)"
    assert text.locator("ul, blockquote, .nbgen-table").evaluate_all(ways) == ["rtl", "rtl", "rtl", "ltr"]
    assert text.locator("> p").nth(1).evaluate(side) == "left"
    assert text.locator("pre code").evaluate(side.replace("element.getB", "element.parentNode.getB")) == "middle"
    assert panel.message.get_attribute("dir") == "auto"


def test_options_are_sent_and_shown_as_python(opened: Notebook, panel: Panel, page: Page) -> None:
    page.get_by_text("Options", exact=True).click()
    page.get_by_label("Preset").focus()
    page.get_by_label("Preset").select_option("Precise")
    expect(page.get_by_label("Preset")).to_be_focused()
    heat = page.get_by_label("Temperature")
    expect(heat).to_have_value("0")
    for written, there in (("0.33", "0.33"), ("5", "0.33"), ("0", "0")):
        heat.fill(written)
        heat.press("Tab")
        expect(heat).to_have_value(there)
    expect(panel.status).to_contain_text("Temperature stays as it was")
    page.get_by_label("Seed").focus()
    opened.kernel_value("setattr(chat, 'params', {**chat.params, 'top_k': 3}) or setattr(chat, 'system', 'Be brief.')")
    expect(page.get_by_label("Top-k")).to_have_value("3")
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")
    opened.kernel_value("chat.params.pop('top_k') and chat.send_state('params') or setattr(chat, 'system', '')")
    expect(page.get_by_label("Top-k")).to_have_value("")
    page.get_by_label("Seed").fill("7")
    page.get_by_label("Seed").press("Tab")
    with page.expect_request("**/api/v1/subscribe") as sent:
        panel.ask("hello")
    params = sent.value.post_data_json["start"]["params"]
    assert params == {"max_new_tokens": 8, "ignore_eos": True, "temperature": 0, "sampling_seed": 7}
    expect(panel.status).to_have_text(READY)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy as Python").click()
    code = page.evaluate("navigator.clipboard.readText()")
    assert opened.kernel_value(f"exec({code!r}) or result.text") == opened.kernel_value("chat.messages[-1]['content']")


def test_a_notebook_opened_again_shows_the_talk_and_the_panel_finds_it(
    lab: Lab, opened: Notebook, panel: Panel, page: Page
) -> None:
    panel.ask("What is it?")
    expect(panel.status).to_have_text(READY)
    transcript = page.get_by_text("Transcript: 2 messages")
    expect(transcript).to_be_visible()
    answer = panel.answers.first.locator(".nbgen-text").inner_text()
    opened.command("docmanager:save")
    saved = opened.page.evaluate("JSON.stringify(window.jupyterapp.shell.currentWidget.content.model.toJSON())")
    assert lab.token not in saved
    opened.end_kernel()

    nothing = {"chat": "x", "run": None, "messages": [], "turns": []}
    page.route("**/api/v1/chats/*", lambda route: route.fulfill(json=nothing))  # the server was started again
    page.reload()
    opened.settled()
    transcript.click()
    expect(opened.output(0)).to_contain_text("What is it?")
    expect(page.get_by_role("log", name="Conversation")).to_have_count(0)

    opened.run(0)
    expect(page.get_by_role("article", name="You")).to_contain_text("What is it?")
    until(lambda: "What is it?" in opened.kernel_value("chat._kept"))
    expect(panel.answers.first.locator(".nbgen-text")).to_have_text(answer, use_inner_text=True)


def test_chats_of_one_name_in_two_notebooks_are_two_that_live_through_a_restart(
    lab: Lab, opened: Notebook, panel: Panel, page: Page
) -> None:
    panel.ask("one")
    expect(panel.status).to_have_text(READY)
    cell = page.evaluate("window.jupyterapp.shell.currentWidget.content.model.sharedModel.getCell(0).getSource()")
    other = Notebook.opened(page, lab, lab.write("another.ipynb", cell))
    other.run(0)
    beside = Panel(other.cell(0))
    beside.ask("two")
    expect(beside.status).to_have_text(READY)
    question = other.cell(0).get_by_role("article", name="You")
    expect(question).to_contain_text("two")
    expect(question).to_have_count(1)
    assert other.kernel_value("[turn['content'] for turn in chat.messages][0]") == "two"
    other.shut_down()
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    opened.settled()
    assert opened.kernel_value(f"exec({cell!r}) or len(chat.messages)") == "2"
    opened.run(0)
    expect(page.get_by_role("article", name="You")).to_contain_text("one")


@pytest.mark.soak
def test_a_question_asked_before_the_panel_is_there_puts_out_nothing_of_what_the_notebook_keeps(
    opened: Notebook, panel: Panel, page: Page
) -> None:
    panel.ask("one")
    expect(panel.status).to_have_text(READY)
    opened.command("docmanager:save")
    opened.end_kernel()
    page.reload()
    opened.settled()
    model = "window.jupyterapp.shell.currentWidget.content.model.sharedModel"
    cell = page.evaluate(f"{model}.getCell(0).getSource()")
    opened.kernel_value(f"exec({cell!r}) or chat.ask('two') or chat.wait()")
    page.evaluate(f"{model}.getCell(1).setSource('chat')")
    opened.run(1)
    question = page.get_by_role("article", name="You")
    expect(question).to_contain_text("two")
    expect(question).to_contain_text("2/2")
    panel.ask("three")
    expect(panel.status).to_have_text(READY)
    kept = page.evaluate(f"Object.values({model}.getMetadata('nbgen').chats).flat().map((turn) => turn.content)")
    assert {"one", "two", "three"} <= set(kept)


def test_of_a_long_conversation_the_end_is_shown_and_a_reader_on_the_way_up_stays_in_place(
    lab: Lab, opened: Notebook, page: Page
) -> None:
    turns = [{"role": role, "content": f"{role} {i}\n\nmore"} for i in range(50) for role in ("user", "assistant")]
    asked = [*turns, {"role": "user", "content": "last"}]
    lab.post("nbgen/api/v1/runs", chat=opened.kernel_value("chat.chat"), messages=asked, params={"max_new_tokens": 1})
    opened.run(0)
    log = page.get_by_role("log", name="Conversation")
    expect(log.get_by_role("article")).to_have_count(40)
    expect(log).to_contain_text("last")
    read = log.get_by_role("article").filter(has_text="assistant 31")
    log.evaluate("log => { log.scrollTop = 0; }")
    expect(log.get_by_role("article")).to_have_count(80)
    expect(read).to_be_in_viewport()
    earlier = log.get_by_role("button", name="Earlier messages")
    earlier.press("Enter")
    expect(log.get_by_role("article")).to_have_count(102)
    expect(earlier).to_have_count(0)
    expect(log).to_be_focused()


def test_variables_are_filled_in_and_the_tab_key_goes_from_the_input_to_the_button_the_options_and_the_talk(
    opened: Notebook, panel: Panel, page: Page
) -> None:
    """And where the system chooses colours, lines tell things apart."""
    panel.ask("a {{hero}}")
    expect(panel.message).to_have_value("a fox")
    expect(panel.answers).to_have_count(0)
    panel.message.press("Enter")
    expect(page.get_by_role("article", name="You")).to_contain_text("a fox")
    expect(panel.status).to_have_text(READY)
    expect(panel.message).to_be_focused()
    expect(page.get_by_role("log", name="Conversation")).to_have_attribute("aria-live", "off")
    for role, name in (("button", "Send"), (None, "Options"), ("log", "Conversation")):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        if role:
            assert focused.evaluate("e => e.matches('button') ? e.textContent : e.getAttribute('aria-label')") == name
        else:
            expect(focused).to_have_text(name)
    page.emulate_media(forced_colors="active")
    expect(page.locator(".nbgen-bubble")).to_have_css("border-top-style", "solid")


@pytest.mark.soak
def test_a_question_after_a_refused_one_stands_below_it(opened: Notebook, panel: Panel, page: Page) -> None:
    panel.ask("one")
    expect(panel.status).to_have_text(READY)
    opened.kernel_value("setattr(chat, 'params', {**chat.params, 'max_new_tokens': 32_760})")
    panel.ask("refused")
    alert = panel.answers.nth(1).get_by_role("alert")
    expect(alert).to_contain_text("Choose fewer tokens in Options (Longest answer), or begin a New chat.")
    opened.kernel_value("setattr(chat, 'params', {**chat.params, 'max_new_tokens': 8})")
    panel.ask("two")
    expect(panel.answers.nth(2)).to_contain_text("8 tokens")
    questions = page.get_by_role("article", name="You")
    expect(questions).to_have_text([re.compile(text) for text in ("one", "refused", "two")])
    for _ in range(2):  # what was kept, and what was kept of that
        opened.command("docmanager:save")
        opened.reload()
    expect(questions).to_have_text([re.compile(text) for text in ("one", "refused", "two")])
    expect(panel.answers.nth(1)).to_contain_text("Choose fewer tokens")
    expect(alert).to_have_count(0)  # nobody is told of it once more
    expect(page.get_by_text("2/2")).to_have_count(0)
    questions.nth(1).hover()
    questions.nth(1).get_by_role("button", name="Edit message").click()
    page.get_by_role("textbox", name="Edited message").fill("shorter")
    page.get_by_role("button", name="Send edited").click()
    expect(questions).to_have_text([re.compile("one"), re.compile("shorter.*2/2", re.DOTALL)])
    expect(panel.answers.nth(1)).to_contain_text("8 tokens")
    opened.command("docmanager:save")
    opened.reload()
    expect(questions).to_have_text([re.compile("one"), re.compile("shorter.*2/2", re.DOTALL)])
    page.get_by_role("button", name="Previous version").click()
    panel.answers.nth(1).get_by_role("button", name="New chat").click()
    expect(panel.answers).to_have_count(0)
    expect(panel.message).to_be_focused()
