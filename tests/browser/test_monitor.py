"""The monitor in JupyterLab: it follows the engine, also while the kernel works, and its buttons load and unload."""

import pytest
from playwright.sync_api import Page, expect

from tests.browser.lab import Lab, Notebook
from tests.soak import soaking

CELLS = (
    "import nbgen, time\nnbgen.monitor(interval_ms=300{})",
    "with nbgen.stream('hi', max_new_tokens=20_000, ignore_eos=True) as stream:\n"
    "    next(stream)\n    try:\n        time.sleep(600)\n    except KeyboardInterrupt:\n        pass",
)


@pytest.mark.parametrize("transport", ["auto", soaking("comm")])
def test_the_monitor_shows_what_the_engine_does(lab: Lab, page: Page, transport: str) -> None:
    cells = (CELLS[0].format(f", transport='{transport}'"), CELLS[1])
    notebook = Notebook.of(page, lab, *cells)
    notebook.run(0)
    monitor = page.get_by_role("group", name="Model server")
    load, unload = monitor.get_by_role("button", name="Load", exact=True), monitor.get_by_role("button", name="Unload")
    status = monitor.get_by_role("status")
    expect(status).not_to_be_empty()
    if status.inner_text() != "ready":
        expect(load).to_be_enabled()
        load.click()
    expect(status).to_have_text("ready")
    expect(monitor).to_contain_text("parameters")
    expect(monitor.locator(".nbgen-gauge").nth(1)).to_contain_text("iB of")
    if transport == "auto":
        notebook.run(1, wait=False)
        expect(monitor).to_contain_text("1 running")
        rate = monitor.locator(".nbgen-gauge").first.locator(".nbgen-number")
        expect(rate).not_to_have_text("0")
        monitor.get_by_role("button", name="Stop all").click()
        expect(monitor).to_contain_text("0 running")
        expect(monitor.get_by_role("button", name="Stop all")).to_be_disabled()
        notebook.command("notebook:interrupt-kernel")
    lab.post("nbgen/release_memory_occupation")
    expect(status).to_have_text("memory released")
    monitor.get_by_role("button", name="Resume").click()
    expect(status).to_have_text("ready")
    unload.click()
    expect(status).to_have_text("stopped")
    expect(unload).to_be_disabled()
    expect(unload).to_be_focused()
    expect(monitor.locator(".nbgen-gauge").nth(1)).to_contain_text("0 MiB")
    expect(load).to_be_enabled()
    assert notebook.errors() == []
    notebook.leave()


def test_the_monitor_says_that_its_kernel_is_gone_and_is_narrow_where_the_page_is(lab: Lab, page: Page) -> None:
    notebook = Notebook.of(page, lab, CELLS[0].format(", transport='comm'"))
    notebook.run(0)
    monitor = page.get_by_role("group", name="Model server")
    expect(monitor.get_by_role("status")).not_to_be_empty()
    monitor.evaluate("monitor => { monitor.style.width = '270px'; }")
    gauges = monitor.locator(".nbgen-gauge").evaluate_all("all => all.map((gauge) => gauge.offsetLeft)")
    assert len(set(gauges)) == 1
    monitor.get_by_role("status").click()  # which takes no focus, as no button in Safari
    expect(monitor).to_be_focused()
    page.evaluate("window.jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()")
    expect(monitor.get_by_role("alert")).to_have_text("The kernel has ended: run the cell again.")
    notebook.leave()
