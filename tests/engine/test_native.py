"""Our own C++ is compiled once for a machine, and where it cannot be, torch's operators serve."""

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import pytest
import torch

from nbgen.engine import cache_folder, native
from nbgen.engine.attention_cpu import CpuAttention
from nbgen.engine.attention_native import NativeAttention
from nbgen.engine.backends import attention_for

#: As the module has it, without what this process has loaded already.
library = partial(native.library.__wrapped__, torch.float32)


@pytest.fixture
def short(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that is compiled in no time."""
    source = tmp_path_factory.mktemp("cpp") / "native.cpp"
    source.write_text('extern "C" __attribute__((visibility("default"))) void attend() {}')
    monkeypatch.setattr(native, "SOURCE", source)


@pytest.mark.usefixtures("short")
def test_it_is_built_once_into_the_user_s_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told: list[str] = []
    native.tell_of_build.set(lambda: told.append("it takes long"))
    assert library().attend
    (built,) = (tmp_path / "nbgen").iterdir()
    made = built.stat().st_mtime_ns
    assert library().attend
    assert built.stat().st_mtime_ns == made
    assert told == ["it takes long"]
    assert (tmp_path / "nbgen").stat().st_mode & 0o077 == 0, "nobody else writes what is run here"


@pytest.mark.parametrize("damage", [lambda _: b"", lambda whole: whole[:4096], lambda whole: whole[:999] + bytes(4096)])
@pytest.mark.usefixtures("short")
def test_a_damaged_library_is_built_anew_in_its_place(
    damage: Callable[[bytes], bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library().attend
    (built,) = (tmp_path / "nbgen").iterdir()
    whole = built.read_bytes()
    built.unlink()  # this process goes on with what it has loaded
    built.write_bytes(damage(whole))
    assert library().attend
    assert [path.read_bytes() for path in (tmp_path / "nbgen").iterdir()] == [whole]


@pytest.mark.usefixtures("short")
def test_libraries_that_nobody_uses_go_when_one_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library().attend
    (used,) = (tmp_path / "nbgen").iterdir()
    unused, other = used.with_name("native-0123.so"), used.with_name("models-0123.msgpack")
    long_ago = time.time() - 61 * 86_400
    for file in (used, unused, other):
        file.touch()
        os.utime(file, (long_ago, long_ago))
    assert library().attend
    assert unused.exists(), "a start that builds nothing looks at nothing"
    monkeypatch.setattr(native, "FLAGS", (*native.FLAGS, "-DANOTHER"))
    assert library().attend
    assert not unused.exists()
    assert {used, other} < set((tmp_path / "nbgen").iterdir())


@pytest.mark.usefixtures("short")
def test_a_home_that_cannot_be_written_costs_a_build_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert library().attend
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_home_that_cannot_be_written_costs_no_tiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "cpp").mkdir()
    source = tmp_path / "cpp" / "native.cpp"
    source.write_text('extern "C" __attribute__((visibility("default"))) int use_tiles() { return 1; }')
    monkeypatch.setattr(native, "SOURCE", source)
    monkeypatch.setattr(native, "library", cache(native.library.__wrapped__))
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert native.tiles.__wrapped__()


@pytest.mark.usefixtures("short")
def test_a_full_home_costs_a_build_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def keep(folder: Path, name: str, make: Callable[[Path], object]) -> Path:
        if folder.is_relative_to(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return cache_folder.keep_sealed(folder, name, make)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native, "keep_sealed", keep)
    assert library().attend


@pytest.mark.usefixtures("short")
def test_a_source_is_bytes_whatever_the_locale_takes_them_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with native.SOURCE.open("ab") as source:
        source.write(b"// \xe2\x80\xa6 \xff\n")
    assert library().attend


@pytest.mark.parametrize("named", ["", "env g++", "/no/such/compiler"])
@pytest.mark.usefixtures("short")
def test_the_environment_s_compiler_may_be_several_words_or_gone(
    named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", named)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert library().attend


@pytest.mark.usefixtures("short")
def test_a_compiler_may_be_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Called as Zig's is, which takes the same arguments."""
    package = tmp_path / native.PACKAGE
    package.mkdir()
    (package / "__init__.py").touch()
    command = [shutil.which("g++"), "-DCALLED"]
    (package / "__main__.py").write_text(
        f"import subprocess, sys\nassert sys.argv[1] == 'c++'\nsubprocess.run({command} + sys.argv[2:], check=True)\n"
    )
    with native.SOURCE.open("a") as source:
        source.write("\n#ifndef CALLED\n#error\n#endif\n")
    monkeypatch.setenv("CXX", "")
    monkeypatch.setattr(native, "COMPILERS", ())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    assert library().attend


@pytest.mark.parametrize(("path", "why"), [("/no/such", "no C++ compiler"), (os.environ["PATH"], "exit status 1")])
def test_without_a_compiler_it_says_so_and_is_none(
    path: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with caplog.at_level(logging.INFO):
        assert library() is None
    assert why in caplog.text
    assert "torch's own operators serve" in caplog.text


@pytest.mark.parametrize("compiles", [True, False])
def test_products_of_rounded_layers_are_a_library_of_their_own(
    compiles: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shown = 'extern "C" __attribute__((visibility("default")))'
    folder = tmp_path / "cpp"
    folder.mkdir()
    (folder / "native.cpp").write_text(
        f"static int (*found)(); {shown} void use_rounded(int (*products)()) {{ found = products; }}\n"
        f"{shown} int multiply() {{ return found(); }}\n"
    )
    (folder / native.ROUNDED).write_text(f"{shown} int products() {{ return 7; }}\n" if compiles else "no code")
    monkeypatch.setattr(native, "SOURCE", folder / "native.cpp")
    monkeypatch.setattr(native, "library", cache(native.library.__wrapped__))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert native.rounds.__wrapped__(torch.float32) is compiles
    assert ("rounded.cpp is not compiled" in caplog.text) is not compiles
    if compiles:
        assert native.library(torch.float32).multiply() == 7


def test_attention_falls_back_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(attention_for(torch.device("cpu")), NativeAttention)
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "/no/such/folder")
    assert type(attention_for(torch.device("cpu"))) is CpuAttention


@pytest.fixture
def team(tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Runs a program with this main function, whose threads are a team's."""

    def run(main: str) -> subprocess.CompletedProcess[str]:
        source, program = tmp_path / "team.cpp", tmp_path / "team"
        source.write_text(f'#include "team.h"\n#include <sys/resource.h>\nint main() {{ {main} }}\n')
        flags = [flag for flag in native.FLAGS if flag not in ("-shared", "-fPIC")]
        subprocess.run([*native.compiler(), *flags, "-I", native.SOURCE.parent, source, "-o", program], check=True)
        return subprocess.run([program], capture_output=True, text=True)

    return run


def test_a_team_goes_through_no_more_phases_than_there_is_room_for(
    team: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    phase = "member.each(1, [](int64_t) {});"
    done = team(f"Team(2, 1).run([](Team::Member& member) {{ {phase} {phase} }});")
    assert done.returncode == -signal.SIGABRT
    assert "at_ < team_.phases_" in done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="others do not limit a process's memory")
def test_a_team_does_without_threads_that_the_system_refuses(
    team: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    done = team("""
        rlimit limit{64, 64};  // bytes: no room for a stack
        std::atomic<int64_t> units{0};
        Team team(3, 2);
        setrlimit(RLIMIT_AS, &limit);
        team.run([&](Team::Member& member) {
            for (int phase = 0; phase < 2; phase++) member.each(50, [&](int64_t) { units++; });
        });
        return units == 100 ? 0 : 1;
    """)
    assert done.returncode == 0, done.stderr
