"""`python -m benchmarks.panel`: what the chat panel paints, in a real JupyterLab and Chromium, beside ipywidgets.

A clock takes the place of the engine (`benchmarks/paced.py`); the peers are loops in a cell that put the same tokens
into `ipywidgets.Output` and `ipywidgets.HTML`. Writes PANEL.md.
"""

import statistics
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from benchmarks.machine import describe
from benchmarks.paced import DIGITS, PARAGRAPH
from tests.browser.chromium import SENTENCE, find
from tests.browser.lab import Lab, Notebook, launched

RESULTS = Path(__file__).parent / "PANEL.md"
SECONDS = 3
PEER_LIMIT = 8
#: Counts what `selector` shows at every animation frame, until `count` tokens are painted or `limit` seconds are over.
WATCH = r"""([selector, width, count, limit]) => {
  const shown = () => [...document.querySelectorAll(selector)].at(-1)?.textContent.replace(/\s/g, "").length ?? 0;
  const state = { start: performance.now(), first: null, last: null, seen: 0, gaps: [], long: [], before: shown() };
  globalThis.watched = state;
  new PerformanceObserver((list) => state.long.push(...list.getEntries().map((entry) => entry.duration)))
    .observe({ type: "longtask" });
  let previous = performance.now();
  const frame = () => {
    const now = performance.now();
    if (state.first) state.gaps.push(now - previous);
    previous = now;
    const seen = Math.floor((shown() - (state.fresh ? 0 : state.before)) / width);
    if (seen < 0) state.fresh = true;
    if (seen > state.seen) Object.assign(state, { seen, last: now, first: state.first ?? now });
    state.done = state.seen >= count || now - state.start > limit * 1000;
    if (!state.done) requestAnimationFrame(frame);
  };
  requestAnimationFrame(frame);
}"""
PEERS = {
    "ipywidgets.Output, append_stdout a token": "out = W.Output()\ndisplay(out)\nput = out.append_stdout",
    "ipywidgets.HTML, whole value a token": (
        "out = W.HTML()\ndisplay(out)\nseen = []\ndef put(text):\n    seen.append(text)\n    out.value = ''.join(seen)"
    ),
}
OTHERS = (
    ("token view", "nbgen.Stream()", "Prompt"),
    ("panel, through the kernel", "nbgen.Chat(transport='comm')", "Message"),
)
CROWD = 12
LOOP = """import time
for place in range({count}):
    put(f"{{place:0{digits}d}}" + ("\\n\\n" if place % {paragraph} == {paragraph} - 1 else " "))
    time.sleep(max(0, start + place / {rate} - time.monotonic()))"""


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, launched(find() or sys.exit(SENTENCE)) as browser:
        lab = Lab(Path(folder), also=("benchmarks.paced",))
        try:
            page = browser.new_page(viewport={"width": 1100, "height": 900})
            rows, stops = panel_rows(lab, page)
            rows += other_rows(lab, page)
            rows += peer_rows(lab, page)
            crowd = crowded(lab, page)
        finally:
            lab.stop()
    text = report(rows, stops, crowd)
    RESULTS.write_text(text)
    print(text)


def panel_rows(lab: Lab, page: Page) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The panel at several rates, with an idle kernel and a busy one, and how soon it stops."""
    cells = ("import nbgen\nnbgen.Chat()", "import time\ntime.sleep(60)")
    notebook = Notebook.opened(page, lab, lab.write("panel.ipynb", *cells))
    notebook.run(0)
    page.get_by_role("textbox", name="Message", exact=True).wait_for()
    ask(page, 200, 20)  # the first answer also opens the connection
    rows = [row("panel", "idle", rate, lambda rate=rate: ask(page, rate, rate * SECONDS)) for rate in (200, 1000, 3000)]
    stops = {"idle": statistics.median(stopped(page) for _ in range(5))}
    notebook.run(1, wait=False)
    time.sleep(1)
    rows += [row("panel", "busy", 1000, lambda: ask(page, 1000, 1000 * SECONDS))]
    stops["busy"] = statistics.median(stopped(page) for _ in range(5))
    notebook.shut_down()
    return rows, stops


def peer_rows(lab: Lab, page: Page) -> list[dict[str, Any]]:
    """The same tokens through a loop in a cell."""
    rows = []
    for number, (name, setup) in enumerate(PEERS.items()):
        for rate in (200, 1000):
            loop = LOOP.format(count=rate * SECONDS, rate=rate, digits=DIGITS, paragraph=PARAGRAPH)
            cells = (f"import time\nimport ipywidgets as W\n{setup}", f"start = time.monotonic()\n{loop}")
            notebook = Notebook.opened(page, lab, lab.write(f"peer{number}-{rate}.ipynb", *cells))
            notebook.run(0)
            page.wait_for_timeout(500)

            def begin(notebook: Notebook = notebook, rate: int = rate) -> dict[str, Any]:
                watch(page, ".jp-Cell-outputArea .jp-OutputArea-output", rate * SECONDS, PEER_LIMIT)
                notebook.run(1, wait=False)
                return finished(page)

            rows.append(row(name, "its own loop", rate, begin))
            notebook.shut_down()
    return rows


def other_rows(lab: Lab, page: Page) -> list[dict[str, Any]]:
    """The token view with six alternatives a token, and the panel where the page cannot reach the server."""
    rows = []
    for number, (name, cell, box) in enumerate(OTHERS):
        notebook = Notebook.opened(page, lab, lab.write(f"other{number}.ipynb", f"import nbgen\n{cell}"))
        notebook.run(0)
        page.get_by_role("textbox", name=box, exact=True).wait_for()
        ask(page, 200, 20, box)
        rows.append(row(name, "idle", 1000, lambda box=box: ask(page, 1000, 1000 * SECONDS, box)))
        notebook.shut_down()
    return rows


def crowded(lab: Lab, page: Page) -> float:
    """Milliseconds that Jupyter's own status takes the page while many panels stream; the slowest of ten."""
    notebook = Notebook.opened(page, lab, lab.write("crowd.ipynb", *["import nbgen\nnbgen.Chat(height=220)"] * CROWD))
    notebook.run_all()
    messages = page.get_by_role("textbox", name="Message", exact=True)
    for place in range(CROWD):
        messages.nth(place).fill("100 2000")
        messages.nth(place).press("Enter")
    page.wait_for_timeout(2000)
    slowest = page.evaluate(
        """async (url) => {
          const taken = [];
          for (let i = 0; i < 10; i++) {
            const start = performance.now();
            await (await fetch(url)).text();
            taken.push(performance.now() - start);
          }
          return Math.max(...taken);
        }""",
        f"{lab.url}api/status?token={lab.token}",
    )
    notebook.shut_down()
    return slowest


def ask(page: Page, rate: int, count: int, name: str = "Message") -> dict[str, Any]:
    """Send and watch until all is painted."""
    page.get_by_role("textbox", name=name, exact=True).fill(f"{rate} {count}")
    watch(page, ".nbgen-text, .nbgen-tokens", count, count / rate + 10)
    page.evaluate("document.querySelector('.nbgen-send').click()")
    seen = finished(page)
    page.wait_for_function("!document.querySelector('.nbgen').classList.contains('nbgen-busy')")
    return seen


def stopped(page: Page) -> float:
    """Milliseconds from the click on Stop until the page says that the run has ended on the server."""
    page.get_by_role("textbox", name="Message", exact=True).fill("300 30000")
    page.evaluate("document.querySelector('.nbgen-send').click()")
    page.wait_for_timeout(800)
    return page.evaluate(
        """() => new Promise((resolve) => {
          const start = performance.now();
          document.querySelector(".nbgen-send").click();
          const look = () => document.querySelector(".nbgen-status").textContent === "Stopped"
            ? resolve(performance.now() - start) : setTimeout(look, 1);
          look();
        })"""
    )


def watch(page: Page, selector: str, count: int, limit: float) -> None:
    page.evaluate(WATCH, [selector, DIGITS, count, limit])


def finished(page: Page) -> dict[str, Any]:
    page.wait_for_function("globalThis.watched.done", timeout=60_000)
    return page.evaluate("globalThis.watched")


def row(name: str, kernel: str, rate: int, measure: Any) -> dict[str, Any]:
    """Of three measurements the middle one by rate; one of a peer, which takes long."""
    seen = sorted((figures(measure(), rate) for _ in range(1 if name in PEERS else 3)), key=lambda one: one["rate"])
    found = {"name": name, "kernel": kernel, "wanted": rate, **seen[len(seen) // 2]}
    print(found, flush=True)
    return found


def figures(state: dict[str, Any], rate: int) -> dict[str, Any]:
    gaps = sorted(state["gaps"])
    seconds = (state["last"] - state["first"]) / 1000 if state["first"] else 0
    return {
        "first": state["first"] - state["start"] if state["first"] else float("nan"),
        "rate": state["seen"] / seconds if seconds else 0,
        "lost": max(0, rate * SECONDS - state["seen"]),
        "p95": gaps[int(0.95 * (len(gaps) - 1))] if gaps else float("nan"),
        "max": gaps[-1] if gaps else float("nan"),
        "long": f"{len(state['long'])} ({sum(state['long']):.0f})",
    }


def report(rows: list[dict[str, Any]], stops: dict[str, float], crowd: float) -> str:
    lines = [
        f"| {r['name']} | {r['kernel']} | {r['wanted']} | {r['first']:.0f} | {r['rate']:.0f} | {r['lost']} "
        f"| {r['p95']:.0f} / {r['max']:.0f} | {r['long']} |"
        for r in rows
    ]
    return "\n".join(
        [
            "# What the panel paints",
            "",
            "`python -m benchmarks.panel` writes this file: JupyterLab and Chromium as a person has them, and",
            f"{SECONDS} seconds of numbered tokens, in paragraphs of {PARAGRAPH}, from a clock in place of the engine.",
            "Times are the page's, from the click.",
            "",
            f"{date.today()}, {describe()}.",
            "",
            "| what paints | kernel | tokens/s sent | first paint, ms | tokens/s painted | not painted "
            "| frame p95 / max, ms | long tasks (ms) |",
            "|---|---|---|---|---|---|---|---|",
            *lines,
            "",
            f"Stop, from the click to the run's end on the server as the page shows it: {stops['idle']:.0f} ms with an "
            f"idle kernel, {stops['busy']:.0f} ms with a busy one (median of 5). A widget of the peers cannot be "
            "clicked while its loop runs.",
            "",
            f"While {CROWD} panels of one page stream 100 tokens/s each, Jupyter's `api/status` takes the page "
            f"{crowd:.0f} ms at most.",
            "",
            f"Peers are given {PEER_LIMIT} seconds; what is not painted by then counts as such.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
