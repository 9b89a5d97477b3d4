"""Images in the chat panel: pasted, dropped and chosen, sent to a model that sees, there after a reload; and videos."""

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.files import give, kept, load, sent, serving, shown
from tests.browser.lab import Lab
from tests.engine.image_requests import picture
from tests.engine.multimodal import save
from tests.engine.test_video_files import colours, movie
from tests.server.test_images import png

ARRAY = "chat.ask('Seen?', videos=__import__('numpy').zeros((6, 32, 48, 3), 'uint8'))"
LARGE = "chat.ask('Seen?', images=__import__('numpy').random.default_rng(0).integers(0, 256, (840, 840, 3), 'uint8'))"
FILE = "chat.ask('Seen?', videos={!r})"
BELOW = "nbgen.generate('Seen?', videos={!r}, max_new_tokens=2)"

#: Seconds that a player would play.
LENGTH = """(player) => new Promise((done) => {
    const told = () => done(player.duration);
    player.readyState ? told() : player.addEventListener("loadedmetadata", told);
})"""


def image(name: str, seed: int, width: int = 90) -> tuple[str, str, bytes]:
    return name, "image/png", png(picture(seed, width))


@pytest.fixture(scope="module")
def seeing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("seeing") / "qwen", "qwen2_5_vl")


@pytest.fixture
def seeing(shared_lab: Lab, seeing_model: Path) -> Lab:
    """JupyterLab with a model that sees."""
    return serving(shared_lab, seeing_model)


def test_images_are_given_removed_sent_and_there_when_the_notebook_is_opened_again(
    seeing: Lab, page: Page, listen: Callable[..., None], tmp_path: Path
) -> None:
    fetched: list[str] = []
    listen("request", lambda request: fetched.append(request.url) if request.resource_type == "image" else None)
    notebook, panel = shown(seeing, page)
    attached = page.get_by_role("list", name="Files of this message")
    assert give(page, "paste", image("one.png", 1))
    options = page.get_by_text("Options", exact=True)
    options.focus()
    expect(panel.status).to_have_text("one.png added, 1 image")
    expect(options).to_be_focused()
    assert give(page, "drop", image("two.png", 2), ("notes.bin", "", b"\xff\0"))
    expect(panel.status).to_have_text("notes.bin is no image, sound or text")
    (tmp_path / "three.png").write_bytes(image("", 3, width=2000)[2])
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add images").click()
    chooser.value.set_files(tmp_path / "three.png")
    expect(attached.get_by_role("img")).to_have_count(3)
    expect(panel.message).to_be_focused()
    page.get_by_role("button", name="Remove two.png").press("Enter")
    expect(attached.get_by_role("img")).to_have_count(2)
    assert not give(page, "paste", image("table.png", 4), text="a\tb"), "a table is pasted as text"
    panel.ask("What do you see?")
    expect(panel.status).to_have_text("Answer ready, 4 tokens")
    expect(attached).to_be_hidden()
    you = page.get_by_role("article", name="You")
    expect(you.get_by_role("img", name="Image 1 of 2")).to_be_visible()
    parts = kept(seeing, notebook)[0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    assert sent(parts[0])[1] == image("", 1)[2], "a small one as it is"
    assert parts[1]["image_url"]["url"].startswith("data:image/jpeg"), "a large one made small"
    size = page.evaluate("[...document.querySelectorAll('.nbgen-user img')].map((i) => i.naturalWidth)")
    assert size == [90, 1280]
    notebook.command("docmanager:save")
    notebook.again()
    expect(you.get_by_role("img")).to_have_count(2)
    you.get_by_role("button", name="Image 1 of 2").press("Enter")
    expect(you.locator("[aria-expanded=true]")).to_have_count(1)
    page.get_by_role("button", name="Edit message").click()
    page.get_by_role("textbox", name="Edited message").fill("And now?")
    page.get_by_role("button", name="Send edited").click()
    expect(panel.status).to_have_text("Answer ready, 4 tokens")
    edited = kept(seeing, notebook)[0]["content"]
    assert edited[:2] == parts[:2]
    assert edited[2]["text"] == "And now?"
    notebook.kernel_value("chat.ask('From Python', images=__import__('numpy').zeros((30, 30, 3)))")
    expect(page.get_by_role("article", name="You").last.get_by_role("img")).to_have_count(1)
    expect(panel.status).to_have_text("Answer ready, 4 tokens")
    assert not [url for url in fetched if not url.startswith(("data:", seeing.url.partition("/user")[0]))]
    notebook.leave()


@pytest.mark.soak
def test_images_go_through_the_kernel_as_well(seeing: Lab, page: Page) -> None:
    notebook, panel = shown(seeing, page, ', transport="comm"')
    expect(page.get_by_role("button", name="Add images")).to_be_visible()
    give(page, "drop", image("one.png", 1))
    expect(panel.status).to_have_text("one.png added, 1 image")
    panel.ask("What do you see?")
    expect(panel.status).to_have_text("Answer ready, 4 tokens")
    assert [part["type"] for part in kept(seeing, notebook)[0]["content"]] == ["image_url", "text"]
    notebook.leave()


@pytest.mark.soak
def test_a_large_image_is_there_after_a_reload_through_the_kernel_and_seen_again(seeing: Lab, page: Page) -> None:
    notebook, panel = shown(seeing, page, ', transport="comm"', LARGE)
    you = page.get_by_role("article", name="You").get_by_role("img")
    notebook.run(1)
    expect(panel.status).to_have_text("Answer ready, 4 tokens")
    expect(you).to_be_visible()
    large = kept(seeing, notebook)[0]["content"][0]
    assert len(sent(large)[1]) > 2_000_000
    notebook.command("docmanager:save")
    notebook.reload()
    expect(you).to_be_visible()
    panel.ask("And now?")
    expect(panel.status).to_have_text("Answer ready, 4 tokens")
    assert [turn["content"] for turn in kept(seeing, notebook)[::2]] == [
        [large, {"type": "text", "text": "Seen?"}],
        "And now?",
    ]
    notebook.leave()


def test_videos_are_shown_where_they_were_asked_about(seeing: Lab, page: Page, listen: Callable[..., None]) -> None:
    fetched: list[str] = []
    listen("request", lambda asked: fetched.append(asked.url) if asked.resource_type in ("image", "media") else None)
    (file := seeing.folder / "clip.webm").write_bytes(movie(colours(24), "libvpx", "webm"))
    notebook, panel = shown(seeing, page, "", ARRAY, FILE.format(str(file)), BELOW.format(str(file)))
    you = page.get_by_role("article", name="You")
    notebook.run(1)
    expect(panel.status).to_have_text("Answer ready, 4 tokens")
    expect(you.get_by_role("img", name="Frames of video 1 of 1")).to_be_visible()
    expect(you.locator("img")).to_have_count(4)
    notebook.run(2)
    expect(you.get_by_label("Video 1 of 1")).to_be_visible()
    assert you.get_by_label("Video 1 of 1").evaluate(LENGTH) == pytest.approx(1, abs=0.1)
    notebook.run(3)
    below = notebook.output(3).get_by_label("video of the question")
    expect(below).to_be_visible()
    assert below.evaluate(LENGTH) == pytest.approx(1, abs=0.1)
    assert not [url for url in fetched if not url.startswith(("data:", seeing.url))]
    notebook.leave()


def test_who_goes_into_a_panel_finds_the_model_that_was_loaded_since(
    seeing: Lab, seeing_model: Path, page: Page
) -> None:
    load(seeing, model="bundled")
    notebook, panel = shown(seeing, page)
    expect(page.locator(".nbgen-name")).to_have_text("bundled")
    serving(seeing, seeing_model)
    panel.message.click()
    expect(page.locator(".nbgen-name")).to_have_text("qwen")
    expect(page.get_by_role("button", name="Add images")).to_be_visible()
    notebook.leave()


def test_a_model_of_text_takes_none_and_says_so(lab: Lab, page: Page) -> None:
    load(lab)
    notebook, panel = shown(lab, page)
    for name in ("Add images", "Add sounds", "Record a sound"):
        expect(page.get_by_role("button", name=name)).to_be_hidden()
    assert give(page, "drop", ("one.wav", "audio/wav", b""))
    expect(panel.status).to_contain_text("takes text only: sounds need a model that hears")
    for event in ("paste", "drop"):
        assert give(page, event, image("one.png", 1))
        expect(panel.status).to_contain_text("takes text only: images need a model that sees")
        panel.status.evaluate("status => { status.textContent += ', one that hears, '.repeat(9); }")
        assert panel.status.evaluate("status => status.scrollWidth <= status.clientWidth"), "all of it is seen"
        expect(page.get_by_role("list", name="Files of this message")).to_be_hidden()
    panel.message.fill("Sum up")
    assert give(page, "drop", ("data.csv", "text/csv", b"a,b\r\n1,2\r\n"))
    expect(panel.status).to_have_text("data.csv added as text")
    expect(panel.message).to_have_value("Sum up\n\ndata.csv:\n```csv\na,b\n1,2\n```")
    notebook.leave()
