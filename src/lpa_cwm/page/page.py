"""The page's layout and wiring; what happens behind it is in `desk`, `session` and `why`."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from lpa_cwm.config import ADJUDICATOR, ADJUDICATORS, WORLD
from lpa_cwm.errors import InputError
from lpa_cwm.io.overlay import enlargement
from lpa_cwm.page import models
from lpa_cwm.page.desk import Choice, Desk, check_world, checked_tab
from lpa_cwm.page.guard import Guard, Hosts
from lpa_cwm.page.pictures import numbered, web_color
from lpa_cwm.page.run import Files, Stopped
from lpa_cwm.page.session import Session, cleared, clicked, undone
from lpa_cwm.page.upload import inside
from lpa_cwm.page.why import Question, asked, looks_again, panel

STYLE = Path(__file__).with_name("page.css")
FONT = ["ui-sans-serif", "system-ui", "Segoe UI", "Helvetica Neue", "Arial", "sans-serif"]
MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "monospace"]
HEAD = """<header><h1>LPA-CWM</h1><p>Click points on a frame and follow them through the video.
A world model answers ten times for every point; see which answers were believed, and why.</p></header>"""
ASK = '<div class="blank">Choose a point and a target frame, then press <b>Show why</b>.</div>'
SILENT: dict[str, Any] = {"api_visibility": "private"}
logger = logging.getLogger(__name__)


def sentence(error: Exception) -> str:
    """What went wrong, for the page; what should not have gone wrong is in the log as well."""
    if isinstance(error, InputError):
        return escape(str(error))
    logger.error("the page failed", exc_info=error)
    return "Something went wrong that should not have; the terminal where the page was started tells more."


@contextmanager
def sentences() -> Iterator[None]:
    """Whatever is raised appears on the page as a sentence."""
    try:
        yield
    except Exception as error:
        raise gr.Error(sentence(error), duration=20, title="Not possible", print_exception=False) from error


def theme() -> gr.themes.Base:
    """Light and calm, with fonts that are on the machine."""
    return gr.themes.Base(primary_hue="indigo", neutral_hue="slate", font=FONT, font_mono=MONO).set(
        body_background_fill="#f6f7fb",
        block_background_fill="#ffffff",
        block_border_color="#e4e7f0",
        block_radius="12px",
        button_large_radius="10px",
        button_small_radius="8px",
        input_radius="8px",
        button_primary_background_fill="#4353d9",
        button_primary_background_fill_hover="#3543bd",
        button_primary_text_color="#ffffff",
        slider_color="#4353d9",
    )


class Page:
    """The components, made section by section, then wired."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        with gr.Blocks(title="LPA-CWM", analytics_enabled=False, delete_cache=(600, 600)) as self.blocks:
            self.session = gr.State(None)
            gr.HTML(HEAD, elem_id="head")
            with gr.Row(elem_id="choose", equal_height=False):
                with gr.Column(scale=7, elem_classes="card"):
                    self.build_frame()
                with gr.Column(scale=4, min_width=320, elem_classes="card"):
                    self.build_choices()
            with gr.Column(visible=False, elem_id="tracks", elem_classes="card") as self.tracks:
                self.build_tracks()
            with gr.Column(elem_id="why", elem_classes="card"):
                self.build_why()
            self.wire()

    def build_frame(self) -> None:
        gr.HTML("<h2>Points</h2>")
        self.frame = gr.Image(
            show_label=False, interactive=False, buttons=[], elem_id="frame", type="pil", format="jpeg", container=False
        )
        with gr.Row(equal_height=True, elem_id="under"):
            self.slider = gr.Slider(0, 1, 0, step=1, label="Frame", elem_id="slider", scale=5, buttons=[])
            self.undo = gr.Button("Undo", size="sm", min_width=70, elem_id="undo")
            self.clear = gr.Button("Clear", size="sm", min_width=70, elem_id="clear")
        self.legend = gr.HTML(elem_id="legend")

    def build_choices(self) -> None:
        gr.HTML("<h2>Follow</h2>")
        with gr.Row():
            self.upload = gr.UploadButton("Open a video", file_types=["video"], size="sm", elem_id="upload")
            self.bundled = gr.Button("Bundled clip", size="sm", elem_id="bundled")
        self.about = gr.HTML(elem_id="about")
        self.methods = gr.CheckboxGroup(label="Methods, side by side", elem_id="methods")
        self.world = gr.Dropdown(label="World model", elem_id="world", filterable=False)
        self.last = gr.Slider(1, 2, 1, step=1, label="Follow up to frame", elem_id="last", buttons=[])
        self.absent = gr.HTML(elem_id="absent")
        self.go = gr.Button("Follow the points", variant="primary", elem_id="go")
        self.stop = gr.Button("Stop", variant="stop", visible=False, elem_id="stop")
        self.status = gr.HTML(elem_id="status")

    def build_tracks(self) -> None:
        gr.HTML("<h2>Tracks</h2>")
        self.video = gr.Video(
            show_label=False, interactive=False, autoplay=True, loop=True, buttons=[], elem_id="video", container=False
        )
        with gr.Row(elem_id="downloads"):
            self.mp4 = gr.DownloadButton("Video (MP4)", size="sm", elem_id="mp4")
            self.tables = {
                (method, kind): gr.DownloadButton(
                    f"{models.TITLES[method]} {kind.upper()}", size="sm", visible=False, elem_id=f"{kind}-{method}"
                )
                for method in ADJUDICATORS
                for kind in ("csv", "npz")
            }

    def build_why(self) -> None:
        gr.HTML("<h2>Why there?</h2>")
        with gr.Row(equal_height=True, elem_id="ask"):
            self.number = gr.Radio([], label="Point", elem_id="number", scale=3)
            self.target = gr.Slider(1, 2, 1, step=1, label="Target frame", elem_id="target", scale=4, buttons=[])
            self.method = gr.Radio([], label="Method", elem_id="method", scale=3)
            self.ask = gr.Button("Show why", variant="primary", elem_id="show", scale=1, min_width=120)
        self.panel = gr.HTML(ASK, elem_id="panel")

    def wire(self) -> None:
        """Which event calls what."""
        shown = [self.session, self.frame, self.legend, self.number]
        opened = [*shown, self.slider, self.last, self.target, self.about, self.panel]
        offers = [self.methods, self.world, self.method, self.absent]
        quick: dict[str, Any] = {**SILENT, "show_progress": "hidden"}
        start = self.blocks.load(self.offer, None, offers, **quick)
        start.then(self.take_bundled, [self.world], opened, **quick)
        self.bundled.click(self.take_bundled, [self.world], opened, **quick)
        self.upload.upload(self.take_upload, [self.upload], opened, show_progress_on=self.about, **SILENT)
        self.world.input(self.change_world, [self.session, self.world], opened, **quick)
        self.slider.change(self.scrub, [self.session, self.slider], self.frame, trigger_mode="always_last", **quick)
        self.frame.select(self.click, [self.session, self.slider], shown, trigger_mode="multiple", **quick)
        self.undo.click(self.take_back, [self.session, self.slider], shown, **quick)
        self.clear.click(self.remove_all, [self.session, self.slider], shown, **quick)
        self.wire_work(quick)
        self.blocks.unload(self.leave)

    def wire_work(self, quick: dict[str, Any]) -> None:
        """The two buttons that compute, and the one that stops."""
        results = [self.go, self.stop, self.status, self.tracks, self.video, self.mp4, *self.tables.values()]
        chosen = [self.session, self.methods, self.world, self.last]
        self.go.click(self.run, chosen, results, concurrency_limit=1, **quick)
        self.stop.click(self.halt, None, None, queue=False, **quick)
        question = [self.session, self.number, self.target, self.method, self.world]
        triggers = [self.ask.click, self.number.input, self.target.release, self.method.input]
        gr.on(triggers, self.why, question, self.panel, trigger_mode="always_last", concurrency_limit=1, **SILENT)

    def offer(self) -> tuple[Any, ...]:
        """What can run here, looked up whenever the page is opened."""
        methods = [(models.TITLES[name], name) for name in models.runnable_methods()]
        worlds = models.runnable_worlds()
        method = ADJUDICATOR if ADJUDICATOR in models.runnable_methods() else methods[0][1]
        said = "".join(f"<p>{sentence}</p>" for sentence in models.absences())
        return (
            gr.CheckboxGroup(choices=methods, value=[method]),
            gr.Dropdown(choices=worlds, value=WORLD if WORLD in worlds else worlds[0]),
            gr.Radio(choices=methods, value=method),
            said,
        )

    def take_bundled(self, world: str) -> tuple[Any, ...]:
        with sentences():
            return self.opened(self.desk.take_bundled(world))

    def take_upload(self, path: str, request: gr.Request) -> tuple[Any, ...]:
        with sentences():
            # Moved from where Gradio puts uploads, which is below the page's folder; nothing else is ever moved.
            upload = inside(self.desk.folder, Path(path))
            return self.opened(self.desk.take_upload(upload, tab_of(request)))

    def change_world(self, session: Session | None, world: str) -> tuple[Any, ...]:
        """The bundled clip follows the world model; a video of the user stays."""
        with sentences():
            models.world(world)
            fresh = self.desk.take_bundled(world)
            if session is not None and (not session.bundled or session.clip.name == fresh.clip.name):
                return (gr.skip(),) * 9
            return self.opened(fresh)

    def opened(self, session: Session) -> tuple[Any, ...]:
        """Everything that depends on the clip."""
        clip, end = session.clip, len(session.clip) - 1
        height, width = clip.hw
        about = f"<b>{escape(clip.name)}</b> {len(clip)} frames, {width} × {height}, {clip.fps:g} per second"
        sliders = (
            gr.Slider(maximum=end, value=0),
            gr.Slider(maximum=end, value=end),
            gr.Slider(maximum=end, value=min(end, max(1, end // 2))),
        )
        return (*self.shown(session, 0), *sliders, about, ASK)

    def shown(self, session: Session, frame: int) -> tuple[Any, ...]:
        """Everything that depends on the points."""
        numbers = [str(number) for number in range(len(session.points))]
        choice = gr.Radio(choices=numbers, value=numbers[-1] if numbers else None)
        return session, numbered(session.clip, frame, session.points), legend(session), choice

    def scrub(self, session: Session | None, frame: int) -> Any:
        with sentences():
            known = present(session)
            return numbered(known.clip, min(int(frame), len(known.clip) - 1), known.points)

    def click(self, session: Session | None, frame: int, event: gr.SelectData) -> tuple[Any, ...]:
        with sentences():
            known = present(session)
            scale = enlargement(known.clip.hw)
            x, y = (place / scale for place in event.index)
            return self.shown(clicked(known, x, y, int(frame)), int(frame))

    def take_back(self, session: Session | None, frame: int) -> tuple[Any, ...]:
        with sentences():
            return self.shown(undone(present(session)), int(frame))

    def remove_all(self, session: Session | None, frame: int) -> tuple[Any, ...]:
        with sentences():
            return self.shown(cleared(present(session)), int(frame))

    def run(
        self, session: Session | None, methods: list[str], world: str, last: int, request: gr.Request
    ) -> Iterator[tuple[Any, ...]]:
        """Follow in a thread and tell how far it is; the tracks appear with everything that can be downloaded."""
        begun, heard = time.monotonic(), deque([(0, 0)], maxlen=1)

        def report(done: int, total: int) -> None:
            heard.append((done, total))

        def work() -> Files:
            return self.desk.follow(present(session), Choice(methods, world, int(last)), tab_of(request), report)

        with ThreadPoolExecutor(1) as worker:
            future = worker.submit(work)
            while not future.done():
                yield *self.state(True, bar(*heard[-1], time.monotonic() - begun)), *self.no_files()
                wait([future], timeout=0.3)
        try:
            yield *self.state(False, ""), *self.finished(future.result())
        except Stopped:
            yield *self.state(False, '<p class="note">Stopped.</p>'), *self.no_files()
        except Exception as error:
            yield *self.state(False, f'<p class="refused">{sentence(error)}</p>'), *self.no_files()

    def state(self, busy: bool, said: str) -> tuple[Any, ...]:
        """The button that fits, and a line below it."""
        return gr.Button(visible=not busy), gr.Button(visible=busy), said

    def no_files(self) -> tuple[Any, ...]:
        """The tracks stay as they are."""
        return (gr.skip(),) * (3 + len(self.tables))

    def finished(self, files: Files) -> tuple[Any, ...]:
        """The video and a button for each file that was written."""
        paths = {(method, kind): path for kind in ("csv", "npz") for method, path in getattr(files, kind).items()}
        buttons = [
            gr.DownloadButton(value=str(paths[key]) if key in paths else None, visible=key in paths)
            for key in self.tables
        ]
        return gr.Column(visible=True), str(files.mp4), gr.DownloadButton(value=str(files.mp4)), *buttons

    def why(self, session: Session | None, number: str | None, target: int, method: str, world: str) -> Iterator[str]:
        """The first look at once; then, if there is a second, what that made of it."""
        with sentences():
            known = present(session)
            if number is None or int(number) >= len(known.points):
                raise InputError("There is no point to explain; click one on the frame first.")
            check_world(known, world)
            question = Question(known.clip, known.points, int(number), int(target), method, world)
            if looks_again(question):
                yield panel(question, asked(question, first_look=True), settled=False)
            yield panel(question, asked(question), settled=True)

    def halt(self, request: gr.Request) -> None:
        with sentences():
            self.desk.stop(tab_of(request))

    def leave(self, request: gr.Request) -> None:
        with sentences():
            self.desk.close(tab_of(request))


def bar(done: int, total: int, seconds: float) -> str:
    """How far a run is, and how long it will take if it goes on like this."""
    share = done / total if total else 0.0
    left = f", about {seconds / share - seconds:.0f} s left" if share else ""
    said = f"{done} of {total} frame pairs{left}" if total else "Starting …"
    return f'<div class="progress"><span style="width: {share:.1%}"></span></div><p class="note">{said}</p>'


def legend(session: Session) -> str:
    """The points in words and colors."""
    if not session.points:
        return '<p class="note">Click on the frame to add a point; click a point to remove it.</p>'
    listed = "".join(
        f'<li style="--ink: {web_color(point)}"><b>{number}</b>{point.x:.0f}, {point.y:.0f} '
        f"<small>frame {point.frame}</small></li>"
        for number, point in enumerate(session.points)
    )
    return f"<ul>{listed}</ul>"


def present(session: Session | None) -> Session:
    """The tab's session; a tab that slept through a restart of the page has none."""
    if session is None:
        raise InputError("The page was started anew; reload it in the browser.")
    return session


def tab_of(request: gr.Request) -> str:
    """Return what tells one tab from another; the browser chooses it."""
    return checked_tab(request.session_hash)


def serve(desk: Desk, host: str, port: int | None, share: bool, show: bool) -> None:
    """Serve the page until interrupted."""
    desk.results.mkdir(parents=True, exist_ok=True)
    gr.set_static_paths([desk.results])
    models.world(WORLD)
    Page(desk).blocks.launch(
        server_name=host,
        server_port=port,
        share=share,
        inbrowser=show,
        theme=theme(),
        css_paths=[STYLE],
        footer_links=[],
        max_file_size=f"{desk.limits.megabytes}mb",
        ssr_mode=False,
        show_error=False,
        app_kwargs={"middleware": [Middleware(Guard, hosts=Hosts(host, share), limits=desk.limits)]},
    )
