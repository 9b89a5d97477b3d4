"""A JupyterHub of our own: its proxy, its login, and a single-user server for whoever logs in."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import urllib.request
from pathlib import Path

from playwright.sync_api import Page

from tests.browser.lab import LAB_OPTIONS, await_answer, end, save_notebook
from tests.conftest import PATIENCE, free_port

PASSWORD = "open sesame"
PROXY = Path(__file__).parents[2] / "js" / "node_modules" / ".bin" / "configurable-http-proxy"
CONFIG = """
c.JupyterHub.bind_url = {url!r}
c.JupyterHub.hub_port = {hub_port}
c.JupyterHub.db_url = "sqlite://"
c.JupyterHub.cookie_secret_file = "cookie_secret"
c.ConfigurableHTTPProxy.command = {proxy!r}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.auth_token = {token!r}
c.JupyterHub.authenticator_class = "dummy"
c.DummyAuthenticator.password = {password!r}
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = {home!r}
c.Spawner.environment = {{"JUPYTER_CONFIG_DIR": {home!r}.format(username="config"), "XDG_CACHE_HOME": {cache!r}}}
c.Spawner.cmd = [{python!r}, "-m", "jupyterhub.singleuser"]
c.Spawner.args = {args!r}
c.Spawner.default_url = "/lab"
"""


class Hub:
    """A running `jupyterhub` below a path of its own. Anybody may log in with the password."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}/hubs/test/"
        self.log = folder / "hub.log"
        options = {name: value for name, value in LAB_OPTIONS.items() if name.startswith("LabApp") or "allow" in name}
        options |= {"ServerApp.jpserver_extensions": "nbgen=True", "NbgenApp.model": model, "NbgenApp.standby": False}
        config = CONFIG.format(
            url=self.url,
            hub_port=free_port(),
            proxy_port=free_port(),
            proxy=[str(PROXY)],
            token=secrets.token_hex(16),
            password=PASSWORD,
            home=str(folder / "{username}"),
            cache=os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),  # or our C++ is compiled anew
            python=sys.executable,
            args=[f"--{name}={value}" for name, value in options.items()],
        )
        (folder / "jupyterhub_config.py").write_text(config)
        assert PROXY.exists(), "run `npm ci` in js/"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("NBGEN_", "JUPYTER"))}
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub"], stdout=log, stderr=log, cwd=folder, env=environment
            )
        health = f"{self.url}hub/health"
        await_answer(lambda: urllib.request.urlopen(health, timeout=5).close(), self._process, self.log)

    def write(self, user: str, name: str, *cells: str) -> None:
        """A notebook of code cells in the user's home."""
        home = self.folder / user
        home.mkdir(exist_ok=True)
        save_notebook(home / name, *cells)

    def log_in(self, page: Page, user: str, path: str) -> None:
        """As a person does; ends at a page of the user's own server."""
        page.goto(f"{self.url}hub/login?next={self.url}hub/user-redirect/{path}")
        page.get_by_label("Username").fill(user)
        page.get_by_label("Password").fill(PASSWORD)
        page.locator("#login_submit").click()
        page.wait_for_url(f"**/user/{user}/**", timeout=1000 * PATIENCE)

    def stop(self) -> None:
        """End the hub, its proxy and every server."""
        end(self._process)
