"""Checks of what browsers send: host, origin and size of requests; videos, before they are decoded."""

import ipaddress
import logging
import re
import shutil
import socket
import time
from collections import deque
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from threading import Lock
from urllib.parse import urlsplit

import av
from av.video.stream import VideoStream
from jaxtyping import UInt8
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from torch import Tensor

from lpa_cwm.errors import InputError
from lpa_cwm.geometry import HW
from lpa_cwm.io.video import LazyFrames, VideoFile, open_input
from lpa_cwm.types import Clip, Frames

FRAME_CACHE_BYTES = 32 * 1024**2
"""Decoded frames that one tab keeps in memory."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the page; `lpa-cwm track` has none of them."""

    megabytes: int = 200
    frames: int = 600
    pixels: int = 3840 * 2160
    """Pixels of one frame."""
    decoded: int = 600 * 1920 * 1080
    """Pixels of all frames together."""
    uploads: int = 40
    """Uploads of all tabs in ten minutes, the time for which Gradio keeps a file."""
    uploads_of_tab: int = 20
    tabs: int = 64
    """Tabs whose clips are open; one more closes the oldest."""


class LockedFrames:
    """The first frames of a clip, decoded by one thread at a time, because a video file has one position."""

    def __init__(self, frames: Frames, count: int, lock: AbstractContextManager | None = None) -> None:
        self._frames: Frames | None = frames
        self._count = count
        self._lock = lock or Lock()

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> UInt8[Tensor, "3 h w"]:
        if not 0 <= index < self._count:
            raise IndexError(f"frame {index} of a clip of {self._count} frames")
        with self._lock:
            return self._open()[index]

    def until(self, count: int) -> "LockedFrames":
        """Fewer frames behind the same lock."""
        return LockedFrames(self._open(), min(count, self._count), self._lock)

    def close(self) -> None:
        """Release the decoded frames and the file."""
        self._frames = None

    def _open(self) -> Frames:
        if self._frames is None:
            raise InputError("The page has closed this clip; reload the page in the browser.")
        return self._frames


def lock_clip(clip: Clip) -> Clip:
    """A clip that several threads may read."""
    return Clip(LockedFrames(clip.frames, len(clip)), clip.name, clip.fps)


def first_frames(clip: Clip, count: int) -> Clip:
    """The first frames of a locked clip; the name, and so all random masks, stay the same."""
    assert isinstance(clip.frames, LockedFrames)
    return Clip(clip.frames.until(count), clip.name, clip.fps)


def path_inside(folder: Path, path: Path) -> Path:
    """Return a path below a folder, links resolved; refuse any other path and the folder itself."""
    if folder.resolve() not in path.resolve().parents:
        raise InputError(f"{path.name!r} does not lie in the page's own folder; reload the page in the browser.")
    return path


def accept_upload(upload: Path, folder: Path, limits: Limits) -> Clip:
    """Move an uploaded file into the tab's folder and open it; a file that cannot be used is removed."""
    kept = path_inside(folder, folder / upload.name)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        shutil.move(upload, kept)
        return open_checked(kept, limits)
    except InputError as error:
        kept.unlink(missing_ok=True)
        # The user knows the name of the file, not the folder of the page.
        raise InputError(str(error).replace(str(kept), kept.name)) from error
    except OSError as error:
        raise InputError(f"{upload.name} could not be kept ({error.strerror}); choose it again.") from error


def open_checked(path: Path, limits: Limits) -> Clip:
    """Open a clip within the limits; size and length are read from the header before anything is decoded."""
    megabytes = path.stat().st_size / 1e6
    if megabytes > limits.megabytes:
        raise InputError(
            f"{path.name} has {megabytes:.0f} MB; the page takes up to {limits.megabytes}; "
            "cut it, or use `lpa-cwm track`."
        )
    check_size(path.name, *probe_header(path), limits)
    video = VideoFile(path)
    height, width = video.decode(0).shape[-2:]
    check_size(path.name, (height, width), len(video), limits)
    if len(video) < 2:
        raise InputError(f"{path.name} has one frame; tracking a point needs at least two; choose a video.")
    kept = max(1, min(8, FRAME_CACHE_BYTES // (3 * height * width)))
    return lock_clip(Clip(LazyFrames(len(video), video.decode, kept), path.stem, video.fps))


def check_size(name: str, hw: HW, frames: int, limits: Limits) -> None:
    """Refuse a clip that would take too long or too much memory."""
    height, width = hw
    if width * height > limits.pixels:
        raise InputError(
            f"The frames of {name} are {width}x{height}; the page takes up to {limits.pixels / 1e6:.1f} megapixels; "
            "make it smaller."
        )
    if frames > limits.frames:
        raise InputError(
            f"{name} has {frames} frames; the page takes up to {limits.frames}; cut it, or use `lpa-cwm track`."
        )
    if width * height * frames > limits.decoded:
        raise InputError(
            f"{name} has {frames} frames of {width}x{height}; together they are more than the page takes; "
            "cut it or make it smaller."
        )


def probe_header(path: Path) -> tuple[HW, int]:
    """Size and number of frames by the header; zeros where it does not tell."""
    try:
        with open_input(path) as container:
            stream = container.streams.best("video")
            if not isinstance(stream, VideoStream) or stream.codec_context is None:
                return (0, 0), 0
            length = Fraction(stream.duration or 0) * (stream.time_base or 0) * (stream.average_rate or 0)
            return (stream.height, stream.width), stream.frames or round(length)
    except av.FFmpegError:
        # The reader says what is wrong with the file.
        return (0, 0), 0


logger = logging.getLogger(__name__)
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
ANY_ADDRESS = frozenset({"0.0.0.0", "::", ""})
TUNNEL_SUFFIX = ".gradio.live"
UPLOAD_LIFETIME = 600
"""Seconds after which Gradio removes an uploaded file."""
MULTIPART_OVERHEAD = 100_000
"""Bytes of an upload's request besides the file."""
MAX_MESSAGE = 1_000_000
"""Bytes of any other request; clips and tracks of a tab stay on this side."""
POST_PATHS = re.compile(r"/gradio_api/(queue/join|upload|cancel|reset|run/\w+)/?", re.ASCII)
"""What the page's script posts to; Gradio also offers to convert recordings, call components, and edit the app."""
REFUSED_PATHS = re.compile(
    r"/(monitoring|gradio_api/(proxy=|deep_link|stream|custom_component|runs|run-history|vibe|profiling))"
)
"""What Gradio offers to read beyond the page: other addresses, and links for which it stores files."""


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
        if name in LOCAL or name == self.bound.strip("[]").lower() or (self.share and name.endswith(TUNNEL_SUFFIX)):
            return True
        return self.bound in ANY_ADDRESS and (is_address(name) or name in machine_names())

    def admit_origin(self, origin: str, host: str) -> bool:
        """Whether a request comes from the page itself; the tunnel passes requests on under another name."""
        site = urlsplit(origin).netloc.lower()
        return site == host.lower() or (self.share and (name_of(site) or "").endswith(TUNNEL_SUFFIX))


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


def is_length(header: str, most: int) -> bool:
    """Whether a `Content-Length` header is a number of at most `most` bytes."""
    return header.isascii() and header.isdecimal() and len(header) <= 18 and int(header) <= most


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
        read_only = scope["type"] == "websocket" or scope["method"] in ("GET", "HEAD", "OPTIONS")
        if REFUSED_PATHS.match(scope["path"]) or not (read_only or POST_PATHS.fullmatch(scope["path"])):
            return PlainTextResponse("The page does not offer this.", 404)
        if read_only:
            return None
        length = headers.get("content-length", "")
        if scope["path"].rstrip("/").endswith("/upload"):
            return self.upload_refusal(length)
        # Without a length, a request could go on for ever.
        return None if is_length(length, MAX_MESSAGE) else PlainTextResponse("The request is too long.", 413)

    def upload_refusal(self, length: str) -> PlainTextResponse | None:
        """Count an upload, or return why it is too much."""
        # Gradio limits each file; a request may hold a thousand of them.
        if not is_length(length, self.limits.megabytes * 1024**2 + MULTIPART_OVERHEAD):
            return PlainTextResponse(f"The page takes one video of up to {self.limits.megabytes} MB at a time.", 413)
        now = time.monotonic()
        while self.uploads and now - self.uploads[0] > UPLOAD_LIFETIME:
            self.uploads.popleft()
        if len(self.uploads) >= self.limits.uploads:
            return PlainTextResponse("The page has taken too many videos; wait ten minutes.", 429)
        self.uploads.append(now)
        return None
