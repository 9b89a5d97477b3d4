"""Paths that clients name: regular files below one folder, whatever links and names there are."""

import contextlib
import os
from pathlib import Path

import pytest

from nbgen.errors import InvalidRequest
from nbgen.messages import GenerateRequest
from nbgen.protocols.media import Source
from nbgen.server import media_files, media_intake
from nbgen.server.media_files import MediaFiles
from nbgen.server.media_intake import MediaIntake
from nbgen.server.media_urls import MediaUrls

LIMIT = 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    (root / "deep").mkdir(parents=True)
    (root / "a b.png").write_bytes(b"image")
    (root / "deep" / "b.png").write_bytes(b"deep")
    (tmp_path / "data-secret").mkdir()
    (tmp_path / "data-secret" / "c.png").write_bytes(b"secret")
    (root / "out.png").symlink_to(tmp_path / "data-secret" / "c.png")
    (root / "outside").symlink_to(tmp_path / "data-secret")
    (root / "in.png").symlink_to(root / "deep" / "b.png")
    (root / "circle.png").symlink_to(root / "circle.png")
    os.mkfifo(root / "fifo.png")
    (root / "large.png").write_bytes(bytes(LIMIT + 1))
    return root


def test_files_below_the_root_are_read_however_they_are_named(root: Path) -> None:
    files = MediaFiles(root)
    for name in ("a b.png", f"{root}/a b.png", f"file://{root}/a%20b.png", f"FILE://localhost{root}/a%20b.png"):
        assert files.read(name, LIMIT, "image_data") == b"image"
    assert files.read("deep/../deep/b.png", LIMIT, "image_data") == b"deep"
    assert files.read("in.png", LIMIT, "image_data") == b"deep"


@pytest.mark.parametrize(
    "name",
    [
        *("../data-secret/c.png", "out.png", "outside/c.png", "deep", "", ".", "/", "missing.png", "fifo.png"),
        "circle.png",
        *("/dev/zero", "/proc/self/environ", "a b.png\0", "x" * 300 + ".png", "x/" * 600),
        *("file://elsewhere/a.png", "file:///dev/zero", "file://[/x.png", "file:///../../etc/passwd", "~/x.png"),
    ],
)
def test_everything_else_has_one_answer(root: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="there is no file") as caught:
        MediaFiles(root).read(name, LIMIT, "image_data")
    assert str(root.parent) not in caught.value.message


@pytest.mark.parametrize("name", ["deep", "fifo.png", "a b.png"])
def test_nothing_stays_open(root: Path, name: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with contextlib.suppress(InvalidRequest):
            MediaFiles(root).read(name, LIMIT, "image_data")
    assert before.issuperset(os.listdir("/proc/self/fd")), "and what others left may be collected meanwhile"


def test_an_absolute_path_into_a_folder_with_the_same_beginning_is_outside(root: Path) -> None:
    with pytest.raises(InvalidRequest, match="there is no file"):
        MediaFiles(root).read(f"{root}-secret/c.png", LIMIT, "image_data")


def test_a_large_file_is_not_read_whole(root: Path) -> None:
    with pytest.raises(InvalidRequest, match="has more than 1000 bytes"):
        MediaFiles(root).read("large.png", LIMIT, "image_data")


def test_a_link_put_in_after_the_check_is_not_followed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = Path.resolve

    def swapped(self: Path, strict: bool = False) -> Path:
        found = resolve(self, strict=strict)
        if found.name == "b.png":
            (root / "deep").rename(root / "gone")
            (root / "deep").symlink_to(root.parent / "data-secret")
            (root.parent / "data-secret" / "b.png").write_bytes(b"secret")
        return found

    files = MediaFiles(root)
    monkeypatch.setattr(media_files.Path, "resolve", swapped)
    with pytest.raises(InvalidRequest, match="there is no file"):
        files.read("deep/b.png", LIMIT, "image_data")


def test_without_a_root_no_path_is_read(root: Path) -> None:
    with pytest.raises(InvalidRequest, match="--media-root"):
        MediaFiles(None).read(str(root / "a b.png"), LIMIT, "image_data")


async def test_a_call_that_names_more_than_may_be_alive_is_refused_before_all_of_it_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(media_intake, "MAX_MEDIA_BYTES", 2 * LIMIT)
    intake = MediaIntake(MediaUrls([]), MediaFiles(root))
    (root / "large.png").write_bytes(bytes(LIMIT))

    async def fill(*names: str) -> int:
        requests = [GenerateRequest(rid=name, text="a") for name in names]
        media = [[Source("image", "path", name, {}, "image_data")] for name in names]
        filled = await intake.fill(requests, media, trusted=True, model=None)
        return sum(len(each.data) for request in filled for each in request.media)

    assert await fill("large.png", "large.png", "./large.png", "large.png") == 4 * LIMIT
    with pytest.raises(InvalidRequest, match=f"more than {2 * LIMIT} bytes together") as caught:
        await fill("large.png", "./large.png", "a b.png", "missing.png")
    assert caught.value.field == "image_data"
