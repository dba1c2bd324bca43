"""Parts of the page: theme, HTML, error sentences, and the components section by section."""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gradio as gr

from lpa_cwm.errors import InputError
from lpa_cwm.page.drawing import posters, web_color
from lpa_cwm.page.server import ResultFiles, title_of
from lpa_cwm.page.session import COLORS, ColorBy, Session, track_colors
from lpa_cwm.registry import GALLERY

FONT = ["ui-sans-serif", "system-ui", "Segoe UI", "Helvetica Neue", "Arial", "sans-serif"]
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "monospace"]
HEADER_HTML = """<header><h1>LPA-CWM</h1><p>Click points on a frame and track them through the video.
A world model gives several candidates for every point; see how they were weighted, and why.</p></header>"""
METHOD_TIPS = """<p class="note">How they weigh the candidates:
<span class="tip" tabindex="0" data-tip="All candidates have the same weight.">Uniform</span>
<span class="tip" tabindex="0" data-tip="Analytic: candidates that keep the appearance of the point and agree with \
plausible images have more weight. Nothing is learned.">APA</span>
<span class="tip" tabindex="0" data-tip="Learned: a small network, trained on simulated clips, weighs the candidates \
together and judges whether the point is visible.">LPA</span></p>"""
BASELINE_INFO = "Lucas-Kanade (lk), and optical flow by DIS or RAFT: from the point's frame, or over several gaps."
EMPTY_PANEL = '<div class="blank">Choose a point and a target frame, then press <b>Show why</b>.</div>'
CONFIDENCE_SCALE = '<div class="scale"><span>uncertain</span><i></i><span>certain</span></div>'
CLICK_MODES = {"point": "A point", "object": "An object"}
"""What a click on the frame adds."""
ZOOMS = {"1x": 1, "2x": 2, "4x": 4}
CORRECTION_HINT = (
    '<p class="note">A track is wrong? Click on it here, then click where it should be, and track again.</p>'
)
logger = logging.getLogger(__name__)


def sentence(error: BaseException) -> str:
    """What went wrong, for the page; an unexpected error is also one line in the log."""
    if isinstance(error, InputError):
        return escape(str(error))
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f"{Path(last[0].filename).name}:{last[0].lineno}" if last else "nowhere"
    logger.error("the page failed at %s: %s", where, repr(error)[:200])
    return "The page could not do this; reload it. The terminal where it was started has one more line."


@contextmanager
def sentences() -> Iterator[None]:
    """Show any error on the page as a sentence, without a traceback in the terminal."""
    try:
        yield
    except gr.Error as error:
        error.print_exception = False
        raise
    except Exception as error:
        raise gr.Error(sentence(error), duration=20, title="Not possible", print_exception=False) from error


class SafeBlocks(gr.Blocks):
    """Blocks that refuse requests with wrong inputs by a sentence; Gradio prints a traceback for each."""

    async def process_api(self, block_fn: Any, inputs: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Run one event."""
        with sentences():
            refuse_addresses(inputs)
            return await super().process_api(block_fn, inputs, *args, **kwargs)


def refuse_addresses(inputs: Any) -> None:
    """Refuse files of other machines, which Gradio would download, whatever their size."""
    level = [inputs]
    while level:
        value = level.pop()
        if isinstance(value, dict):
            if "://" in str(value.get("path", "")):
                raise InputError("The page takes files from the browser, none from other addresses; upload the video.")
            level += value.values()
        elif isinstance(value, list | tuple):
            level += value


def theme() -> gr.themes.Base:
    """Light and dark colors, with fonts that are on the machine."""
    return gr.themes.Base(primary_hue="indigo", neutral_hue="slate", font=FONT, font_mono=MONO).set(
        body_background_fill="#f6f7fb",
        body_background_fill_dark="#12141c",
        block_background_fill="#ffffff",
        block_background_fill_dark="#1b1e29",
        block_border_color="#e4e7f0",
        block_border_color_dark="#313647",
        block_radius="12px",
        button_large_radius="10px",
        button_small_radius="8px",
        input_radius="8px",
        button_primary_background_fill="#4353d9",
        button_primary_background_fill_dark="#4353d9",
        button_primary_background_fill_hover="#3543bd",
        button_primary_background_fill_hover_dark="#5a69e6",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
        slider_color="#4353d9",
        slider_color_dark="#7c88f5",
    )


def color_by(value: Any) -> ColorBy:
    """Coloring of the tracks: by track, or by confidence."""
    return "confidence" if value == "confidence" else "track"


def whole(value: Any, largest: int) -> int:
    """A whole number from 0 to `largest`, as a slider gives it."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{str(value)[:40]!r} is not a number; move the slider.") from error
    return min(max(number, 0), largest)


def progress_bar(done: int, total: int, seconds: float) -> str:
    """Progress of a run and the estimated time left."""
    share = done / total if total else 0.0
    left = f", about {duration(seconds / share - seconds)} left" if share else ""
    said = f"{done} of {total} steps{left}" if total else "Starting …"
    return f'<div class="progress"><span style="width: {share:.1%}"></span></div><p class="note">{said}</p>'


def duration(seconds: float) -> str:
    """Seconds, or minutes if there are many."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def legend(session: Session) -> str:
    """The points in words and colors."""
    if not session.points:
        return '<p class="note">Click on the frame to add a point; click a point to remove it.</p>'
    colors = track_colors(session.points)
    listed = "".join(
        f'<li style="--ink: {web_color(point)}"><b>{colors.index(point.color)}</b>{point.x:.0f}, {point.y:.0f} '
        f"<small>frame {point.frame}</small></li>"
        for point in session.points
    )
    return f"<ul>{listed}</ul>"


def links(files: ResultFiles) -> str:
    """Download links of all files of a run."""
    named = {f"mp4-{color_by}": (f"Video by {color_by} (MP4)", path) for color_by, path in files.videos.items()}
    for kind, paths in (("csv", files.csv), ("npz", files.npz)):
        named |= {f"{kind}-{method}": (f"{title_of(method)} {kind.upper()}", path) for method, path in paths.items()}
    return "".join(link(name, title, path) for name, (title, path) in named.items())


def link(name: str, title: str, path: Path) -> str:
    """A link that downloads a file of the results folder."""
    address = f"gradio_api/file={quote(str(path))}"
    return f'<a id="{escape(name)}" href="{address}" download="{escape(path.name)}">{escape(title)}</a>'


def code_spans(text: str) -> str:
    """HTML of a sentence whose commands stand between backticks."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))


class PageLayout:
    """The components; `Page` arranges and wires them."""

    def build_frame(self) -> None:
        """The frame to click on."""
        gr.HTML("<h2>Points</h2>")
        self.frame = gr.Image(
            show_label=False, interactive=False, buttons=[], elem_id="frame", type="pil", format="jpeg", container=False
        )
        with gr.Row(equal_height=True, elem_id="under"):
            self.slider = gr.Slider(0, 1, 0, step=1, label="Frame", elem_id="slider", scale=5, buttons=[])
            self.grid = gr.Button("Grid", size="sm", min_width=64, elem_id="grid")
            self.undo = gr.Button("Undo", size="sm", min_width=64, elem_id="undo")
            self.clear = gr.Button("Clear", size="sm", min_width=64, elem_id="clear")
        with gr.Row(equal_height=True, elem_id="how"):
            clicks = [(title, name) for name, title in CLICK_MODES.items()]
            self.mode = gr.Radio(clicks, value="point", label="A click adds", elem_id="mode", scale=3)
            self.zoom = gr.Radio(list(ZOOMS), value="1x", label="Zoom on the last point", elem_id="zoom", scale=3)
        self.legend = gr.HTML(elem_id="legend")

    def build_choices(self) -> None:
        """The clip and how to track."""
        gr.HTML("<h2>Track</h2>")
        self.upload = gr.UploadButton("Open a video", file_types=["video"], size="sm", elem_id="upload")
        self.gallery = gr.Gallery(
            [(posters()[name], name) for name in GALLERY], columns=len(GALLERY), rows=1, height="auto", buttons=[],
            allow_preview=False, show_label=False, container=False, elem_id="gallery", interactive=False,
        )  # fmt: skip
        self.about = gr.HTML(elem_id="about")
        self.methods = gr.CheckboxGroup(label="Adjudicators, side by side", elem_id="methods")
        gr.HTML(METHOD_TIPS, elem_id="tips")
        self.baselines = gr.Dropdown(
            label="Baselines to compare with",
            elem_id="baselines",
            multiselect=True,
            filterable=False,
            info=BASELINE_INFO,
        )
        self.world = gr.Dropdown(label="World model", elem_id="world", filterable=False)
        self.last = gr.Slider(1, 2, 1, step=1, label="Track up to frame", elem_id="last", buttons=[])
        self.backward = gr.Checkbox(True, label="Also backward, to the first frame", elem_id="backward")
        self.go = gr.Button("Track the points", variant="primary", elem_id="go")
        self.stop = gr.Button("Stop", variant="stop", visible=False, elem_id="stop")
        self.status = gr.HTML(elem_id="status")
        self.absent = gr.HTML(elem_id="absent")

    def build_tracks(self) -> None:
        """The results: a timeline to scrub, a video, links."""
        gr.HTML("<h2>Tracks</h2>")
        with gr.Row(equal_height=True, elem_id="show-what"):
            self.shown_method = gr.Radio([], label="Method", elem_id="shown-method", scale=4)
            choices = [(f"By {name}", name) for name in COLORS]
            self.color = gr.Radio(choices, value="track", label="Color", elem_id="color", scale=3)
            gr.HTML(CONFIDENCE_SCALE, elem_id="scale")
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=320):
                self.still = gr.Image(
                    show_label=False, interactive=False, buttons=[], elem_id="still", type="pil", format="jpeg",
                    container=False,
                )  # fmt: skip
                self.timeline = gr.Slider(0, 1, 0, step=1, label="Frame", elem_id="timeline", buttons=[])
                self.fix = gr.HTML(CORRECTION_HINT, elem_id="fix")
            with gr.Column(scale=1, min_width=320):
                self.video = gr.Video(
                    show_label=False, interactive=False, autoplay=True, loop=True, buttons=[], elem_id="video",
                    container=False,
                )  # fmt: skip
        self.downloads = gr.HTML(elem_id="downloads")

    def build_why(self) -> None:
        """One point explained."""
        gr.HTML("<h2>Why there?</h2>")
        with gr.Row(equal_height=True, elem_id="ask"):
            self.number = gr.Dropdown([], label="Point", elem_id="number", filterable=False, scale=1, min_width=90)
            self.target = gr.Slider(1, 2, 1, step=1, label="Target frame", elem_id="target", scale=4, buttons=[])
            self.method = gr.Radio([], label="Adjudicator", elem_id="method", scale=3)
            self.ask = gr.Button("Show why", variant="primary", elem_id="show", scale=1, min_width=120)
        self.panel = gr.HTML(EMPTY_PANEL, elem_id="panel")
