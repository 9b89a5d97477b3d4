"""Sounds in the chat panel: chosen, dropped and recorded, sent to a model that hears, there again after a reload."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from playwright.sync_api import Locator, Page, expect

from tests.browser.files import give, kept, sent, serving, shown
from tests.browser.lab import Lab
from tests.engine.multimodal import save
from tests.engine.test_audio import sound
from tests.soak import soaking

RATE = 16_000
ASK = "nbgen.generate('Heard?', audio=({samples}, 16000), max_new_tokens=2)"
NOISE = "__import__('numpy').random.default_rng(0).normal(size={} * 16000).clip(-1, 1)"


def file(name: str, seconds: float, rate: int = RATE, channels: int = 1, form: str = "WAV") -> tuple[str, str, bytes]:
    samples = np.resize(sound(440), (int(seconds * rate), channels))
    soundfile.write(written := io.BytesIO(), samples, rate, format=form)
    return name, f"audio/{form.lower()}", written.getvalue()


@pytest.fixture(scope="module")
def hearing_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("hearing") / "qwen", "qwen2_audio")


@pytest.fixture
def hearing(shared_lab: Lab, hearing_model: Path) -> Lab:
    """JupyterLab with a model that hears."""
    return serving(shared_lab, hearing_model)


def length(player: Locator) -> float:
    """Seconds that a player would play."""
    wait = "(e) => new Promise((done) => e.readyState ? done() : e.addEventListener('loadedmetadata', done))"
    player.evaluate(wait)
    return player.evaluate("(e) => e.duration")


@pytest.mark.soak
def test_sounds_are_given_removed_sent_and_there_after_a_reload(hearing: Lab, page: Page, tmp_path: Path) -> None:
    notebook, panel = shown(hearing, page, "", ASK.format(samples=NOISE.format(1)))
    attached = page.get_by_role("list", name="Files of this message")
    expect(page.get_by_role("button", name="Add images")).to_be_hidden()
    assert give(page, "drop", small := file("small.flac", 0.5, form="FLAC"), file("two.wav", 0.5))
    expect(panel.status).to_have_text("two.wav added, 2 sounds")
    (tmp_path / "large.wav").write_bytes(file("", 8, 48_000, channels=2)[2])
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Add sounds").click()
    chooser.value.set_files(tmp_path / "large.wav")
    expect(panel.status).to_have_text("large.wav added, 3 sounds")
    expect(panel.message).to_be_focused()
    assert length(attached.get_by_label("small.flac", exact=True)) == pytest.approx(0.5, abs=0.05)
    page.get_by_role("button", name="Remove two.wav").press("Enter")
    expect(panel.status).to_have_text("two.wav removed, 2 sounds")
    panel.ask("What do you hear?")
    expect(panel.status).to_have_text("Answer ready, 4 tokens")
    expect(attached).to_be_hidden()
    parts = kept(hearing, notebook)[0]["content"]
    assert [part["type"] for part in parts] == ["audio_url", "audio_url", "text"]
    assert sent(parts[0]) == ("data:audio/flac;base64", small[2]), "a small one as it is"
    head, data = sent(parts[1])
    assert head == "data:audio/wav;base64"
    info = soundfile.info(io.BytesIO(data))
    assert (info.samplerate, info.channels, info.duration) == (RATE, 1, pytest.approx(8, abs=0.01)), "a large one less"
    transcript = notebook.output(0).locator("details audio[controls]")
    expect(transcript).to_have_count(2)
    notebook.command("docmanager:save")
    notebook.reload()
    you = page.get_by_role("article", name="You")
    assert length(you.get_by_label("Sound 1 of 2")) == pytest.approx(0.5, abs=0.05)
    assert length(you.get_by_label("Sound 2 of 2")) == pytest.approx(8, abs=0.05)
    page.get_by_role("button", name="Edit message").click()
    page.get_by_role("textbox", name="Edited message").fill("And now?")
    page.get_by_role("button", name="Send edited").click()
    expect(panel.status).to_have_text("Answer ready, 4 tokens")
    assert kept(hearing, notebook)[0]["content"][:2] == parts[:2]
    expect(transcript).to_have_count(2)
    notebook.run(1)
    expect(notebook.output(1).locator("audio[controls]")).to_have_count(1)
    notebook.leave()


def test_a_sound_from_python_is_shown_whatever_its_size_and_a_microphone_that_is_not_allowed_is_said_in_words(
    hearing: Lab, page: Page
) -> None:
    page.context.clear_permissions()
    page.context.grant_permissions([])
    notebook, panel = shown(hearing, page)
    for seconds, count in ((1, 1), (40, 2)):
        notebook.kernel_value(f"chat.ask('Heard?', audio=({NOISE.format(seconds)}, 16000))")
        you = page.get_by_role("article", name="You")
        expect(you).to_have_count(count)
        assert length(you.last.get_by_label("Sound 1 of 1")) == pytest.approx(seconds, abs=0.05)
        expect(panel.answers).to_have_count(count)
        expect(panel.answers.last).to_contain_text("to first token")
    assert notebook.kernel_value("chat.to_openai()[2]['content'][0]['type']") == "audio_url"
    page.get_by_role("button", name="Record a sound").click()
    expect(panel.status).to_have_text("The browser did not allow the microphone")
    panel.ask("Nothing to hear")
    expect(panel.answers).to_have_count(3)
    expect(panel.status).to_have_text("Answer ready, 4 tokens")
    notebook.leave()


@pytest.mark.parametrize("transport", ["auto", soaking("comm")])
def test_a_recording_is_a_sound_that_the_server_decodes(hearing: Lab, page: Page, transport: str) -> None:
    page.context.grant_permissions(["microphone"])
    notebook, panel = shown(hearing, page, f", transport={transport!r}")
    page.get_by_role("button", name="Record a sound").press("Enter")
    expect(panel.status).to_have_text("Recording")
    expect(page.get_by_role("timer", name="Recorded")).not_to_have_text("0:00")
    panel.ask("Too early")
    expect(panel.status).to_have_text("Stop the recording first")
    page.get_by_role("button", name="Stop recording").press("Enter")
    expect(panel.status).to_have_text("recording 1 added, 1 sound")
    expect(page.get_by_role("timer", name="Recorded")).to_be_hidden()
    panel.ask("What do you hear?")
    expect(panel.status).to_have_text("Answer ready, 4 tokens")
    head, data = sent(kept(hearing, notebook)[0]["content"][0])
    samples, rate = soundfile.read(io.BytesIO(data))
    assert (head, rate) == ("data:audio/wav;base64", RATE)
    assert len(samples) > RATE // 2
    assert np.abs(samples).max() > 0.01, "the microphone beeps"
    notebook.leave()


def test_what_cannot_be_sent_is_refused_in_words_and_what_cannot_be_recorded_has_no_button(
    hearing: Lab, page: Page, tmp_path: Path
) -> None:
    notebook, panel = shown(hearing, page)
    give(page, "drop", ("noise.wav", "audio/wav", b"no sound at all"))
    expect(panel.status).to_have_text("noise.wav is no sound that this browser can read")
    give(page, "drop", ("a.png", "image/png", b""), file("fine.wav", 0.5))
    expect(panel.status).to_contain_text("takes text and sounds: images need a model that sees")
    expect(page.get_by_role("list", name="Files of this message").get_by_role("listitem")).to_have_count(1)
    long = tmp_path / "long.wav"
    soundfile.write(long, np.zeros(661 * 8000), 8000, subtype="PCM_U8")
    (tmp_path / "large.wav").write_bytes(bytes(26 * 2**20))
    for name, words in (("long", "lasts 11:01; at most 10:00 minutes"), ("large", "has 26 MB; at most 25 MB")):
        with page.expect_file_chooser() as chooser:
            page.get_by_role("button", name="Add sounds").click()
        chooser.value.set_files(tmp_path / f"{name}.wav")
        expect(panel.status).to_have_text(f"{name}.wav {words} can be sent")

    expect(page.get_by_role("button", name="Record a sound")).to_be_visible()
    page.evaluate("() => { window.kept = window.MediaRecorder; delete window.MediaRecorder; }")
    try:
        notebook.run(0)
        expect(page.get_by_role("list", name="Files of this message")).to_be_hidden()  # it is another panel
        expect(page.get_by_role("button", name="Add sounds")).to_be_visible()
        expect(page.get_by_role("button", name="Record a sound")).to_be_hidden()
    finally:
        page.evaluate("() => { window.MediaRecorder = window.kept; }")
    notebook.leave()
