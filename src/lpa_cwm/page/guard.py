"""Checks of requests before Gradio: host, origin, size of uploads; errors become short answers."""

import ipaddress
import logging
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lpa_cwm.page.upload import Limits

logger = logging.getLogger(__name__)
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})
TUNNEL = ".gradio.live"
KEPT = 600
"""Seconds after which Gradio removes an uploaded file."""
MULTIPART = 100_000
"""Bytes of an upload's request beside the file."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """The names under which the page may be addressed.

    A site can let its own name point to this machine (DNS rebinding); then the browser takes the page for a part of
    that site. Only the `Host` header tells.
    """

    bound: str
    share: bool = False

    def admit(self, host: str) -> bool:
        """Whether a `Host` header is one of ours."""
        name = name_of(host)
        if name is None:
            return False
        if name in LOCAL or name == self.bound.strip("[]").lower() or (self.share and name.endswith(TUNNEL)):
            return True
        return self.bound in ANY_ADDRESS and (is_address(name) or name in machine_names())

    def admit_origin(self, origin: str, host: str) -> bool:
        """Whether a request comes from the page itself; the tunnel passes requests on under another name."""
        site = urlsplit(origin).netloc.lower()
        return site == host.lower() or (self.share and (name_of(site) or "").endswith(TUNNEL))


def name_of(host: str) -> str | None:
    """Return the name in `name:port`; None if there is none or the port is no number."""
    try:
        parts = urlsplit(f"//{host}")
        return parts.hostname if parts.netloc == host and parts.port != 0 else None
    except ValueError:
        return None


def is_address(name: str) -> bool:
    """Whether a name is an IP address, which no name server can redirect."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def machine_names() -> set[str]:
    """The names of this machine in its network."""
    name = socket.gethostname().lower()
    return {name, f"{name}.local", socket.getfqdn().lower()}


@dataclass
class Guard:
    """ASGI middleware that refuses requests from other sites, and uploads beyond the limits."""

    app: ASGIApp
    hosts: Hosts
    limits: Limits
    uploads: deque[float] = field(default_factory=deque)
    """When the recent uploads began."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on or refuse it."""
        refusal = self.refusal(scope) if scope["type"] in ("http", "websocket") else None
        if refusal is None:
            await self.forward(scope, receive, send)
        elif scope["type"] == "http":
            await refusal(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; an exception becomes one line in the log and, if nothing was sent, status 500."""
        started = False

        async def watched(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except Exception as error:
            if scope["type"] not in ("http", "websocket"):
                raise
            logger.warning("a request to %r failed: %s", scope["path"], type(error).__name__)
            if not started and scope["type"] == "http":
                await PlainTextResponse("The page could not answer this request.", 500)(scope, receive, send)

    def refusal(self, scope: Scope) -> PlainTextResponse | None:
        """Return what is wrong with a request."""
        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        if len(headers.getlist("host")) != 1 or not self.hosts.admit(host):
            return PlainTextResponse("The page has another address; use the one in the terminal.", 421)
        if origin is not None and not self.hosts.admit_origin(origin, host):
            return PlainTextResponse("The page takes no requests from other sites.", 403)
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"].rstrip("/").endswith("/upload"):
            return self.upload_refusal(headers.get("content-length", ""))
        return None

    def upload_refusal(self, length: str) -> PlainTextResponse | None:
        """Count an upload, or return why it is too much."""
        # Gradio limits each file; a request may hold a thousand of them.
        if not length.isdecimal() or len(length) > 18 or int(length) > self.limits.megabytes * 1024**2 + MULTIPART:
            return PlainTextResponse(f"The page takes one video of up to {self.limits.megabytes} MB at a time.", 413)
        now = time.monotonic()
        while self.uploads and now - self.uploads[0] > KEPT:
            self.uploads.popleft()
        if len(self.uploads) >= self.limits.uploads:
            return PlainTextResponse("The page has taken too many videos; wait ten minutes.", 429)
        self.uploads.append(now)
        return None
