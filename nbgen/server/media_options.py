"""What the server's owner decides about images, sounds and videos that requests name by URL or path."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from traitlets import List, TraitError, Unicode, default, validate
from traitlets.config import Configurable

from nbgen.server.media_files import MediaFiles
from nbgen.server.media_intake import MediaIntake
from nbgen.server.media_urls import ANY_HOST, MediaUrls, is_host
from nbgen.server.standalone import StandaloneServerApp, is_loopback


class MediaOptions(Configurable):
    """Options of the extension, whose server is `serverapp`."""

    serverapp: Any

    allow_media_hosts = List(
        Unicode(),
        help="Hosts from which images, sounds and videos are fetched that requests name by URL: "
        "--allow-media-host=images.example.org, as often as there are hosts; '*' is every public one. None by default. "
        "Addresses of this machine and of private networks are never connected to.",
    ).tag(config=True)
    media_root = Unicode(
        help="The folder below which requests may name images, sounds and videos by path, those with a token at least. "
        "'none' reads none. By default Jupyter's own folder, and none where the server listens on more than loopback "
        "or stands alone."
    ).tag(config=True)

    @validate("allow_media_hosts")
    def _names_alone(self, proposal: Any) -> list[str]:
        hosts: list[str] = proposal["value"]
        for host in hosts:
            if host != ANY_HOST and not is_host(host):
                words = "is not the name of one host, and nothing else: write images.example.org, or '*' for every one"
                raise TraitError(f"allow_media_hosts: {host!r} {words}")
        return hosts

    @default("media_root")
    def _notebooks(self) -> str:
        server = self.serverapp
        closed = server is None or isinstance(server, StandaloneServerApp) or not is_loopback(server.ip)
        return "none" if closed else str(server.root_dir)

    @validate("media_root")
    def _folder(self, proposal: Any) -> str:
        root: str = proposal["value"]
        if root != "none" and not os.path.isdir(os.path.expanduser(root)):
            raise TraitError(f"media_root: there is no folder {root!r}")
        return root

    def media_intake(self) -> MediaIntake:
        """A `MediaIntake` for the URLs and paths that the options allow."""
        root = None if self.media_root == "none" else Path(self.media_root).expanduser()
        return MediaIntake(MediaUrls(self.allow_media_hosts), MediaFiles(root))
