"""Functions of the notebook that the panel's answers call, in a real JupyterLab, by a model that really calls them."""

import os
import re
import signal
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import STATUS, Lab, Notebook
from tests.browser.panel import Panel
from tests.soak import soaking

CHAT = """import nbgen
from typing import Literal
import asyncio
seen = []

{def} forecast(city: Literal["<b>Oslo</b>"]) -> str:
    "The weather of a city."
    seen.append(city)
    print("called for", city)
    return "<img src=x onerror=alert(1)> 12 degrees" + {more}

chat = nbgen.Chat(tools=forecast, tool_choice="forecast", max_new_tokens=160, temperature=0{options})
chat"""
CALL = 'forecast(city="<b>Oslo</b>")'
RESULT = "→ <img src=x onerror=alert(1)> 12 degrees"


@pytest.fixture
def opened(lab: Lab, page: Page, request: pytest.FixtureRequest) -> Iterator[Notebook]:
    given = getattr(request, "param", {})
    cell = CHAT
    for name, usual in (("def", "def"), ("more", '""'), ("options", "")):
        cell = cell.replace(f"{{{name}}}", given.get(name, usual))
    notebook = Notebook.of(page, lab, cell, "import threading\nfree = threading.Event()", "free.wait()", "chat")
    notebook.run(0)
    notebook.run(1)
    yield notebook
    notebook.leave()


def calls(panel: Panel) -> list[str]:
    return panel.answers.locator(".nbgen-call > summary").all_inner_texts()


@pytest.mark.parametrize("opened", [{}, soaking({"options": ', transport="comm"'})], indirect=True)
def test_a_function_is_called_and_shown_and_the_model_goes_on(opened: Notebook, panel: Panel, page: Page) -> None:
    panel.ask("Rain?")
    expect(panel.answers).to_have_count(2)
    expect(panel.status).to_contain_text("Answer ready")
    line = panel.answers.first.locator(".nbgen-call > summary")
    expect(line).to_have_text(f"{CALL} {RESULT}")
    line.click()
    expect(panel.answers.first.get_by_label("Arguments")).to_contain_text('"city": "<b>Oslo</b>"')
    expect(panel.answers.first.get_by_label("Result")).to_have_text("<img src=x onerror=alert(1)> 12 degrees")
    expect(panel.answers.locator("img, b")).to_have_count(0)
    assert opened.kernel_value("len(seen)") == "1"
    roles = "[turn['role'] for turn in chat.messages]"
    assert opened.kernel_value(roles) == "['user', 'assistant', 'tool', 'assistant']"

    panel.answers.last.hover()
    panel.answers.last.get_by_role("button", name="Regenerate answer").click()
    expect(panel.answers.first).to_contain_text("2/2")
    expect(panel.status).to_contain_text("Answer ready")
    assert opened.kernel_value("len(seen)") == "2"
    panel.ask("And then?")
    expect(panel.answers).to_have_count(4)
    expect(panel.status).to_contain_text("Answer ready")
    panel.answers.first.get_by_role("button", name="Previous version").click()
    expect(panel.answers).to_have_count(2)
    expect(line).to_have_text(f"{CALL} {RESULT}")
    opened.command("docmanager:save")
    opened.again()
    expect(panel.answers).to_have_count(4)
    assert calls(panel) == [f"{CALL} {RESULT}"] * 2
    expect(opened.output(0)).to_contain_text("forecast(")
    assert opened.kernel_value("len(seen)") == "3"


def test_a_busy_kernel_is_waited_for_until_it_is_stopped_or_the_kernel_has_ended(
    opened: Notebook, panel: Panel, page: Page
) -> None:
    opened.run(2, wait=False)
    page.wait_for_function(f"{STATUS} === 'busy'")
    panel.ask("Rain?")
    expect(panel.status).to_have_text("Waiting for the kernel to call forecast")
    panel.message.fill("a draft")
    panel.message.press("Escape")
    expect(panel.status).to_have_text("Stopped")
    expect(panel.message).to_have_value("a draft")
    assert calls(panel) == [f"{CALL} → not called"]
    panel.ask("And now?")
    expect(panel.status).to_have_text("Waiting for the kernel to call forecast")
    opened.command("notebook:interrupt-kernel")
    expect(panel.answers).to_have_count(3)
    expect(panel.status).to_contain_text("Answer ready")
    assert calls(panel) == [f"{CALL} → no result", f"{CALL} {RESULT}"]
    assert opened.kernel_value("len(seen)") == "1"

    opened.run(2, wait=False)
    page.wait_for_function(f"{STATUS} === 'busy'")
    panel.ask("And then?")
    expect(panel.status).to_have_text("Waiting for the kernel to call forecast")
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    expect(panel.status).to_contain_text("The kernel has ended")
    assert calls(panel)[-1] == f"{CALL} → not called"
    expect(panel.send).to_be_visible()


@pytest.mark.parametrize("opened", [{"more": "str(free.wait() or '')"}], indirect=True)
def test_a_function_that_runs_can_be_interrupted_and_stopped(opened: Notebook, panel: Panel, page: Page) -> None:
    panel.ask("Rain?")
    expect(panel.status).to_have_text("Calling forecast")
    opened.command("notebook:interrupt-kernel")
    expect(panel.status).to_have_text("The call was interrupted.")
    panel.ask("And now?")
    expect(panel.status).to_have_text("Calling forecast")
    panel.stop.click()
    expect(panel.status).to_have_text("Stopped")
    opened.command("notebook:interrupt-kernel")
    assert opened.kernel_value("len(seen)") == "2"
    expect(panel.answers).to_have_count(2)


def interrupted_while_away(lab: Lab, opened: Notebook) -> None:
    """The page is loaded again after the kernel has been interrupted, of which it has seen nothing."""
    kernel = opened.page.evaluate(STATUS.replace(".status", ".id"))
    place = opened.page.url
    opened.page.goto("about:blank")
    lab.post(f"api/kernels/{kernel}/interrupt")
    opened.page.goto(place)
    opened.settled()


@pytest.mark.parametrize("opened", [{}, {"options": ', transport="comm"'}], indirect=True)
@pytest.mark.soak
def test_a_page_that_is_loaded_again_waits_as_the_one_before(
    lab: Lab, opened: Notebook, panel: Panel, page: Page
) -> None:
    panel.ask("Rain?")
    expect(panel.answers).to_have_count(2)
    expect(panel.status).to_contain_text("Answer ready")
    opened.command("docmanager:save")
    opened.run(2, wait=False)
    page.wait_for_function(f"{STATUS} === 'busy'")
    panel.ask("And now?")
    expect(panel.status).to_have_text(re.compile("Waiting for the kernel|The kernel is busy"))
    interrupted_while_away(lab, opened)
    expect(panel.answers).to_have_count(4)
    expect(panel.send).to_be_visible()
    assert calls(panel) == [f"{CALL} {RESULT}"] * 2
    assert opened.kernel_value("len(seen)") == "2"


@pytest.mark.parametrize("opened", [{"more": "str(free.wait() or '')"}], indirect=True)
@pytest.mark.soak
def test_a_page_that_is_loaded_again_says_why_a_call_has_no_result(lab: Lab, opened: Notebook, panel: Panel) -> None:
    opened.command("docmanager:save")
    panel.ask("Rain?")
    expect(panel.status).to_have_text("Calling forecast")
    interrupted_while_away(lab, opened)
    expect(panel.status).to_have_text("The call was interrupted.")
    assert calls(panel) == [f"{CALL} → no result"]
    expect(panel.send).to_be_visible()
    assert opened.kernel_value("len(seen)") == "1"


@pytest.mark.parametrize(
    "opened", [{"def": "async def", "more": "str(await asyncio.to_thread(free.wait))"}], indirect=True
)
def test_a_page_that_is_loaded_again_shows_that_it_is_called(opened: Notebook, panel: Panel, page: Page) -> None:
    opened.command("docmanager:save")
    panel.ask("Rain?")
    expect(panel.status).to_have_text("Calling forecast")
    opened.reload()
    expect(panel.status).to_have_text("Calling forecast")
    assert calls(panel) == [f"{CALL}…"]
    opened.kernel_value("free.set()")
    expect(panel.answers).to_have_count(2)
    expect(panel.status).to_contain_text("Answer ready")
    assert calls(panel) == [f"{CALL} {RESULT}True"]


@pytest.mark.soak
def test_a_panel_that_was_saved_without_its_kernel_waits_for_nobody(opened: Notebook, panel: Panel, page: Page) -> None:
    process = int(opened.kernel_value("__import__('os').getpid()"))
    opened.run(2, wait=False)
    page.wait_for_function(f"{STATUS} === 'busy'")
    panel.ask("Rain?")
    expect(panel.status).to_have_text("Waiting for the kernel to call forecast")
    save_widgets = "@jupyter-widgets/jupyterlab-manager:saveWidgetState"  # from now on, or no longer
    opened.command(save_widgets)
    opened.command("docmanager:save")
    opened.command(save_widgets)
    os.kill(process, signal.SIGKILL)  # asked to end, ipykernel 7.1 would make the call first
    opened.end_kernel()
    page.reload()
    opened.settled()
    expect(panel.status).to_contain_text("The kernel has ended")
    assert calls(panel) == [f"{CALL} → not called"]
    expect(panel.send).to_be_visible()


@pytest.mark.soak
def test_two_views_have_it_called_once_and_who_waits_in_a_cell_has_it_called_there(opened: Notebook) -> None:
    opened.run(3)
    second = Panel(opened.cell(3))
    first = Panel(opened.cell(0))
    second.ask("Rain?")
    for view in (first, second):
        expect(view.answers).to_have_count(2)
        expect(view.status).to_contain_text("Answer ready")
        expect(view.answers.first).to_contain_text(RESULT)
    assert opened.kernel_value("len(seen)") == "1"
    said = opened.kernel_value("chat.ask('And now?') or chat.wait() and len(seen)")
    assert said.split("\n") == ["called for <b>Oslo</b>", "2"]
    for view in (first, second):
        expect(view.answers).to_have_count(4)
        expect(view.answers.nth(2)).to_contain_text(RESULT)
        expect(view.status).to_contain_text("Answer ready")
