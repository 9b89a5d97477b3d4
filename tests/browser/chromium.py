"""A Chromium for the browser tests: found on this machine, or installed. Run as a program, it installs one if needed.

Order: $NBGEN_BROWSER, any Chrome or Chromium on the machine, Playwright's own, the system's package where this user
may install it, then Playwright's download.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "microsoft-edge")
MAC = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)
SENTENCE = (
    "The browser tests need a Chrome or Chromium and none could be found or installed. Install one (Debian and Ubuntu: "
    "apt-get install chromium), or set NBGEN_BROWSER to the path of its program, and run this again."
)


def find() -> str | None:
    """The path of a browser's program, or None."""
    named = os.environ.get("NBGEN_BROWSER")
    if named:
        return named if Path(named).is_file() else None
    candidates = [*map(shutil.which, NAMES), *filter(os.path.isfile, MAC), _playwrights_own()]
    return next((path for path in candidates if path), None)


def _playwrights_own() -> str | None:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).is_file() else None


def _install_package() -> None:
    """Debian's package, where there is apt and we are root (or may become it without being asked)."""
    if not shutil.which("apt-get"):
        return
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if sudo and not shutil.which("sudo"):
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "chromium"]):
        if subprocess.run([*sudo, *command], env=environment, check=False).returncode:
            return


def _download() -> None:
    subprocess.run([sys.executable, "-m", "playwright", "install", "chromium-headless-shell"], check=False)


def main() -> None:
    for install in (lambda: None, _install_package, _download):
        install()
        if path := find():
            print(f"browser: {path}")
            return
    sys.exit(SENTENCE)


if __name__ == "__main__":
    main()
