"""Authentication: the base of every handler, which admits a caller by Jupyter's checks or nbgen's own key only.

Jupyter's tokens and cookies keep Jupyter's checks (Host, Origin, XSRF, authorizer). The key, made anew at each
start, opens these routes and nothing else of Jupyter's. Knows no route and no dialect.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from jupyter_server.auth.decorator import allow_unauthenticated
from jupyter_server.auth.utils import HTTP_METHOD_TO_AUTH_ACTION
from jupyter_server.base.handlers import APIHandler

from nbgen.errors import Forbidden, Unauthorized

if TYPE_CHECKING:
    from nbgen.server.app import NbgenApp

METHODS = ("get", "head", "post", "put", "patch", "delete", "options")

#: Response headers that web pages may read, besides those that a browser always shows them (CORS).
EXPOSED = "Inference-Header-Content-Length, Endpoint-Load-Metrics, Retry-After, X-Request-Id, Request-Id"

_HEADER_NAMES = re.compile(r"[\w-]+(?: *, *[\w-]+)*", re.ASCII)
_BEARER = re.compile(r"(?:bearer|token)\b\s*(.*)", re.IGNORECASE)


class AuthenticatedHandler(APIHandler):
    """Denies by default, for every method, before anything of the body is read."""

    auth_resource = "nbgen"
    #: The action that Jupyter's authorizer is asked about, by HTTP method.
    actions: ClassVar[Mapping[str, str]] = HTTP_METHOD_TO_AUTH_ACTION
    #: Whether the route tells only the server's health, so that the owner may open it to callers without a token.
    tells_health: ClassVar[bool] = False
    SUPPORTED_METHODS: Any = tuple(method.upper() for method in METHODS)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Turn off Jupyter's own check of each method, which knows nothing of the key: `admit` decides."""
        super().__init_subclass__(**kwargs)
        for name in METHODS:
            if name in vars(cls):
                setattr(cls, name, allow_unauthenticated(vars(cls)[name]))

    def initialize(self) -> None:
        self._has_key = False

    @property
    def app(self) -> NbgenApp:
        """The extension, which holds the server's models and all else that the routes share."""
        found: NbgenApp = self.settings["nbgen"]
        return found

    async def admit(self) -> None:
        """Return if the caller may do this; otherwise raise the error that they are told."""
        if not self.check_host():  # Jupyter's own answer is a bare "forbidden"
            self.current_user = self._jupyter_current_user = None
            raise Forbidden(
                f"this server does not answer to the Host {self.request.host[:80]!r}: ask it as localhost, or have its "
                "owner set ServerApp.local_hostnames or ServerApp.allow_remote_access"
            )
        if len(tokens := set(self.request.headers.get_list("Authorization"))) == 1:  # SGLang's router sends it twice
            self.request.headers["Authorization"] = tokens.pop()
        if (shown := self.request.headers.get("X-Api-Key")) and not self._shows_token():
            self.request.headers["Authorization"] = f"Bearer {shown}"  # as Anthropic's clients show a token
        self._has_key = self._presents_key()
        if self._has_key:
            self.current_user = self._jupyter_current_user = None
            self.set_cors_headers()
            return
        await super().prepare()
        if self.request.method == "OPTIONS" and (self.allow_origin or self.allow_origin_pat):
            return  # a preflight carries no credentials; without allowed origins it has no use
        if self.current_user is None or await self._only_a_cookie_knows():
            if self.tells_health and self.app.open_health and self.request.method in ("GET", "HEAD"):
                return
            raise Unauthorized(
                "send `Authorization: Bearer <token>`, or `x-api-key`, with the server's token or nbgen's key"
            )
        action = self.actions[self.request.method or ""]
        if action == "write" and self.request.method == "GET":  # Jupyter checks no XSRF for GET
            self.check_xsrf_cookie()
        if not await _settled(self.authorizer.is_authorized(self, self.current_user, action, self.auth_resource)):
            raise Forbidden(f"you may not {action} on nbgen")

    def set_cors_headers(self) -> None:
        """Set Jupyter's CORS headers and, for an allowed origin, the response headers that its pages may read."""
        if not hasattr(self, "_jupyter_current_user"):
            return  # refused before the caller was identified, on which Jupyter's headers depend
        super().set_cors_headers()
        if not self._headers.get("Access-Control-Allow-Origin"):
            self.clear_header("Access-Control-Allow-Origin")  # without an Origin Jupyter sets it to an empty value
        else:
            self.set_header("Access-Control-Expose-Headers", EXPOSED)

    @allow_unauthenticated
    def options(self, *args: str, **kwargs: str) -> None:
        """As Jupyter; an allowed page may also send any headers that its preflight names."""
        super().options(*args, **kwargs)
        asked = self.request.headers.get("Access-Control-Request-Headers", "")
        if _HEADER_NAMES.fullmatch(asked) and "Access-Control-Allow-Headers" not in self.settings.get("headers", {}):
            self.set_header("Access-Control-Allow-Headers", asked)

    def check_xsrf_cookie(self) -> None:
        """Apply Jupyter's check to callers who are authenticated by a cookie.

        An unknown caller is refused later, in plainer words. So is one with a wrong token: no foreign page can make a
        browser send a token. Without authentication a cookie proves nothing: a foreign page is known by its Origin, or
        by Sec-Fetch-Site if it loads a URL as an image, and it cannot send JSON without a preflight.
        """
        if self._has_key or getattr(self, "_jupyter_current_user", None) is None:
            return
        if not self.identity_provider.auth_enabled:
            headers = self.request.headers
            shown = headers.get("Sec-Fetch-Site") == "cross-site" and "Origin" not in headers
            if shown or not self.check_origin():
                raise Forbidden("requests from other origins are not allowed")
        elif not self._shows_token():
            super().check_xsrf_cookie()

    def skip_check_origin(self) -> bool:
        """Skip the check for the key, which no browser sends on its own."""
        return self._has_key or super().skip_check_origin()

    def set_secure_cookie(self, *args: Any, **kwargs: Any) -> None:
        """Set no cookie for a caller with a token: it admits this one call, and Jupyter's login would outlive it."""
        if not self._shows_token() and not self.get_query_argument("token", ""):
            super().set_secure_cookie(*args, **kwargs)

    @property
    def token_authenticated(self) -> bool:
        """Whether the caller showed a secret, not just a cookie."""
        return self._has_key or super().token_authenticated

    def _shows_token(self) -> bool:
        """Whether the Authorization header has the form that Jupyter reads, be the token right or wrong."""
        return _BEARER.fullmatch(self.request.headers.get("Authorization", "").strip()) is not None

    async def _only_a_cookie_knows(self) -> bool:
        """Whether a caller with a wrong token is authenticated by a login cookie only."""
        if not self._shows_token() or self.token_authenticated or not self.identity_provider.auth_enabled:
            return False
        return await _settled(self.identity_provider.get_user_cookie(self)) is not None

    def _presents_key(self) -> bool:
        # As bytes: compare_digest refuses text outside ASCII.
        shown = bearer(self.request.headers.get("Authorization", "")).encode()
        return hmac.compare_digest(shown, self.app.key.encode())


def bearer(authorization: str) -> str:
    """The secret in an Authorization header, empty if there is none."""
    match = _BEARER.fullmatch(authorization.strip())
    return match[1] if match else ""


async def _settled(value: Any) -> Any:
    """The value itself: Jupyter's own classes return it at once, and other classes may return an awaitable."""
    return await value if isinstance(value, Awaitable) else value
