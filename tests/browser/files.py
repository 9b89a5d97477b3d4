"""Giving files to a chat panel as people do, and what the server keeps of them."""

import base64
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from tests.browser.lab import Lab, Notebook
from tests.browser.panel import Panel, until

CHAT = "import nbgen\nchat = nbgen.Chat(max_new_tokens=4, ignore_eos=True{})\nchat"
#: An event with files, as the clipboard and a drag have them.
GIVE = """([selector, event, files, text]) => {
    const transfer = new DataTransfer();
    for (const [name, type, data] of files) {
        const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
        transfer.items.add(new File([bytes], name, { type }));
    }
    if (text) transfer.setData("text/plain", text);
    const options = { bubbles: true, cancelable: true };
    const made = event === "paste"
        ? new ClipboardEvent("paste", { ...options, clipboardData: transfer })
        : new DragEvent(event, { ...options, dataTransfer: transfer });
    document.querySelector(selector).dispatchEvent(made);
    return made.defaultPrevented;
}"""


def give(page: Page, event: str, *files: tuple[str, str, bytes], text: str = "") -> bool:
    """Whether the page took it."""
    selector = ".nbgen-compose textarea" if event == "paste" else ".nbgen-log"
    listed = [[name, type, base64.b64encode(data).decode()] for name, type, data in files]
    return page.evaluate(GIVE, [selector, event, listed, text])


def load(lab: Lab, **model: str) -> None:
    lab.post("nbgen/api/v1/model/load", **model)
    until(lambda: lab.get("nbgen/api/v1/model")["state"] == "ready")


def serving(lab: Lab, model: Path | str) -> Lab:
    """The same JupyterLab, once this model is in the place of any other."""
    if lab.get("nbgen/api/v1/model")["name"] != str(model):
        load(lab, model=str(model))
    return lab


def shown(lab: Lab, page: Page, more: str = "", *cells: str) -> tuple[Notebook, Panel]:
    """A notebook whose first cell has shown a panel; `more` are further arguments of the chat."""
    notebook = Notebook.of(page, lab, CHAT.format(more), *cells)
    notebook.run(0)
    panel = Panel(page)
    panel.message.wait_for()
    return notebook, panel


def kept(lab: Lab, notebook: Notebook) -> list[dict[str, Any]]:
    return lab.get(f"nbgen/api/v1/chats/{notebook.kernel_value('chat.chat')}")["messages"]


def sent(part: dict[str, Any]) -> tuple[str, bytes]:
    """The type and the bytes of a part's data URL."""
    head, _, body = part[part["type"]]["url"].partition(",")
    return head, base64.b64decode(body)
