"""The page's wiring; the parts are in `layout`, the work is in `server`, `session` and `drawing`."""

import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from lpa_cwm.config import ADJUDICATOR, WORLD
from lpa_cwm.errors import InputError
from lpa_cwm.io.visualization import enlargement
from lpa_cwm.page import server as models
from lpa_cwm.page.drawing import Question, draw_clicks, draw_results, explain_point, render_panel
from lpa_cwm.page.guard import Guard, Hosts, path_inside
from lpa_cwm.page.layout import (
    CORRECTION_HINT,
    EMPTY_PANEL,
    HEADER_HTML,
    ZOOMS,
    PageLayout,
    SafeBlocks,
    code_spans,
    color_by,
    legend,
    links,
    progress_bar,
    sentence,
    sentences,
    theme,
    whole,
)
from lpa_cwm.page.server import PageServer, ResultFiles, RunOptions, Stopped, check_choice, check_world, title_of
from lpa_cwm.page.session import (
    Results,
    Session,
    add_grid,
    add_object,
    clear_points,
    click_point,
    correct_track,
    track_colors,
    track_points,
    undo,
)
from lpa_cwm.registry import GALLERY

STYLE = Path(__file__).with_name("page.css")
PRIVATE_EVENT: dict[str, Any] = {"api_visibility": "private"}
QUIET_EVENT: dict[str, Any] = {**PRIVATE_EVENT, "show_progress": "hidden"}


class Page(PageLayout):
    """The components, made section by section, then wired."""

    def __init__(self, server: PageServer) -> None:
        self.server = server
        with SafeBlocks(title="LPA-CWM", analytics_enabled=False, delete_cache=(600, 600)) as self.blocks:
            self.session = gr.State(None)
            self.results = gr.State(None)
            gr.HTML(HEADER_HTML, elem_id="head")
            with gr.Row(elem_id="choose", equal_height=False):
                with gr.Column(scale=7, elem_classes="card"):
                    self.build_frame()
                with gr.Column(scale=4, min_width=320, elem_classes="card"):
                    self.build_choices()
            with gr.Column(visible=False, elem_id="tracks", elem_classes="card") as self.tracks:
                self.build_tracks()
            with gr.Column(elem_id="why", elem_classes="card"):
                self.build_why()
            self.wire_points()
            self.wire_work()
            self.blocks.unload(self.leave)

    def wire_points(self) -> None:
        """Events of the clip and the points."""
        shown = [self.session, self.frame, self.legend, self.number]
        self.opened_parts = [
            *(*shown, self.slider, self.last, self.target, self.about, self.panel),
            *(self.results, self.tracks, self.still, self.video, self.downloads, self.status, self.fix, self.zoom),
        ]
        opened = self.opened_parts
        offers = [self.methods, self.baselines, self.world, self.method, self.absent]
        start = self.blocks.load(self.offer, None, offers, **QUIET_EVENT)
        start.then(self.take_bundled, [self.world], opened, **QUIET_EVENT)
        self.gallery.select(self.take_gallery, [self.world], opened, **QUIET_EVENT)
        self.upload.upload(self.take_upload, [self.upload], opened, show_progress_on=self.about, **PRIVATE_EVENT)
        self.world.input(self.change_world, [self.session, self.world], opened, **QUIET_EVENT)
        place, how = [self.session, self.slider], [self.mode, self.backward]
        self.zoom.input(self.enlarge, [*place, self.zoom], shown, **QUIET_EVENT)
        self.slider.change(self.scrub, place, self.frame, trigger_mode="always_last", **QUIET_EVENT)
        self.frame.select(self.click, [*place, *how], shown, trigger_mode="multiple", **QUIET_EVENT)
        self.grid.click(self.fill_grid, [*place, self.backward], shown, **QUIET_EVENT)
        self.undo.click(self.take_back, place, shown, **QUIET_EVENT)
        self.clear.click(self.remove_all, place, shown, **QUIET_EVENT)

    def wire_work(self) -> None:
        """Events that compute, and those of the results."""
        work = [self.go, self.stop, self.status]
        made = [self.results, self.tracks, self.shown_method, self.timeline, self.still, self.video, self.downloads]
        made.append(self.fix)
        chosen = [self.session, self.methods, self.baselines, self.world, self.last, self.backward, self.color]
        self.go.click(self.run, chosen, [*work, *made], concurrency_limit=1, **QUIET_EVENT)
        self.stop.click(self.halt, None, None, queue=False, **QUIET_EVENT)
        wanted = [self.results, self.shown_method, self.timeline, self.color]
        changes = [self.shown_method.input, self.timeline.change, self.color.input]
        gr.on(changes, self.show_tracks, wanted, self.still, trigger_mode="always_last", **QUIET_EVENT)
        self.color.input(self.show_video, [self.results, self.color], self.video, **QUIET_EVENT)
        right = [self.session, self.frame, self.legend, self.number, self.slider, self.fix]
        self.still.select(self.correct, [self.session, *wanted[:3]], right, trigger_mode="multiple", **QUIET_EVENT)
        question = [self.session, self.number, self.target, self.method, self.world]
        triggers = [self.ask.click, self.number.input, self.target.release, self.method.input]
        gr.on(
            triggers, self.why, question, self.panel, trigger_mode="always_last", concurrency_limit=1, **PRIVATE_EVENT
        )

    def offer(self) -> tuple[Any, ...]:
        """What can run here, looked up whenever the page is opened."""
        adjudicators = models.runnable_adjudicators()
        methods = [(title_of(name), name) for name in adjudicators]
        worlds = models.runnable_worlds()
        method = ADJUDICATOR if ADJUDICATOR in adjudicators else adjudicators[0]
        said = "".join(f"<p>{code_spans(one)}</p>" for one in models.missing_models())
        return (
            gr.CheckboxGroup(choices=methods, value=[method]),
            gr.Dropdown(choices=models.runnable_baselines(), value=[]),
            gr.Dropdown(choices=worlds, value=WORLD if WORLD in worlds else worlds[0]),
            gr.Radio(choices=methods, value=method),
            said,
        )

    def take_bundled(self, world: str, request: gr.Request) -> tuple[Any, ...]:
        """Open the bundled clip."""
        with sentences():
            return self.opened(self.server.open_bundled(world, tab_of(request)))

    def take_gallery(self, world: str, request: gr.Request, event: gr.SelectData) -> tuple[Any, ...]:
        """Open a clip of the gallery."""
        with sentences():
            name = list(GALLERY)[whole(event.index, len(GALLERY) - 1)]
            if world == "toy":
                raise InputError("The toy world understands only its own clip; choose another world model first.")
            return self.opened(self.server.open_gallery(name, tab_of(request)))

    def take_upload(self, path: str, request: gr.Request) -> tuple[Any, ...]:
        """Open an uploaded video."""
        with sentences():
            # Moved from where Gradio puts uploads, which is below the page's folder; nothing else is ever moved.
            upload = path_inside(self.server.folder, Path(path))
            return self.opened(self.server.open_upload(upload, tab_of(request)))

    def change_world(self, session: Session | None, world: str, request: gr.Request) -> tuple[Any, ...]:
        """Open the bundled clip of the world model; a video of the user stays open."""
        with sentences():
            check_choice(world, models.runnable_worlds(), "world model")
            models.cached_world(world)
            if session is not None and (not session.bundled or (session.clip.name == "toy") == (world == "toy")):
                return (gr.skip(),) * len(self.opened_parts)
            return self.opened(self.server.open_bundled(world, tab_of(request)))

    def opened(self, session: Session) -> tuple[Any, ...]:
        """Everything that depends on the clip; results of the former clip are cleared."""
        clip, end = session.clip, len(session.clip) - 1
        height, width = clip.hw
        about = f"<b>{escape(clip.name)}</b> {len(clip)} frames, {width} × {height}, {clip.fps:g} per second"
        sliders = (
            gr.Slider(maximum=end, value=0),
            gr.Slider(maximum=end, value=end),
            gr.Slider(maximum=end, value=min(end, max(1, end // 2))),
        )
        no_results = (None, gr.Column(visible=False), None, None, "", "", CORRECTION_HINT, "1x")
        return (*self.shown(session, 0), *sliders, about, EMPTY_PANEL, *no_results)

    def shown(self, session: Session, frame: int) -> tuple[Any, ...]:
        """Everything that depends on the points."""
        numbers = [str(number) for number in range(len(track_points(session.points)))]
        choice = gr.Dropdown(choices=numbers, value=numbers[-1] if numbers else None)
        return session, draw_clicks(session.clip, frame, session.points, session.view()), legend(session), choice

    def scrub(self, session: Session | None, frame: Any) -> Any:
        """Show another frame."""
        with sentences():
            known = present(session)
            return draw_clicks(known.clip, whole(frame, len(known.clip) - 1), known.points, known.view())

    def enlarge(self, session: Session | None, frame: Any, zoom: str) -> tuple[Any, ...]:
        """Show a part of the frame larger."""
        with sentences():
            known = present(session)
            check_choice(zoom, list(ZOOMS), "zoom")
            return self.shown(replace(known, zoom=ZOOMS[zoom]), whole(frame, len(known.clip) - 1))

    def click(
        self, session: Session | None, frame: Any, mode: str, backward: bool, event: gr.SelectData
    ) -> tuple[Any, ...]:
        """Add or remove a point, or add the points of an object."""
        with sentences():
            known = present(session)
            left, top, right, bottom = known.view()
            scale, number = enlargement((bottom - top, right - left)), whole(frame, len(known.clip) - 1)
            x, y = (float(place) / scale for place in event.index)
            add = add_object if mode == "object" else click_point
            return self.shown(add(known, x + left, y + top, number, bool(backward)), number)

    def fill_grid(self, session: Session | None, frame: Any, backward: bool) -> tuple[Any, ...]:
        """Add a grid of points."""
        with sentences():
            known = present(session)
            number = whole(frame, len(known.clip) - 1)
            return self.shown(add_grid(known, number, backward=bool(backward)), number)

    def correct(
        self, session: Session | None, results: Results | None, method: str, frame: Any, event: gr.SelectData
    ) -> tuple[Any, ...]:
        """Choose a wrong track, then say where it should be."""
        with sentences():
            known = present(session)
            if results is None:
                raise InputError("There are no tracks to correct; track the points first.")
            check_choice(method, list(results.tracks), "method")
            number, scale = whole(frame, len(results.clip) - 1), enlargement(known.clip.hw)
            x, y = (float(place) / scale for place in event.index)
            after = correct_track(known, results, method, x, y, number)
            return *self.shown(after, number), number, fix_note(known, after, number)

    def take_back(self, session: Session | None, frame: Any) -> tuple[Any, ...]:
        """Undo the last change."""
        with sentences():
            known = present(session)
            return self.shown(undo(known), whole(frame, len(known.clip) - 1))

    def remove_all(self, session: Session | None, frame: Any) -> tuple[Any, ...]:
        """Remove all points."""
        with sentences():
            known = present(session)
            return self.shown(clear_points(known), whole(frame, len(known.clip) - 1))

    def run(
        self,
        session: Session | None,
        methods: list[str],
        baselines: list[str],
        world: str,
        last: Any,
        backward: bool,
        color: str,
        request: gr.Request,
    ) -> Iterator[tuple[Any, ...]]:
        """Track in a thread and report progress; then show the results."""
        begun, heard = time.monotonic(), deque([(0, 0)], maxlen=1)
        tab = tab_of(request)
        stop = self.server.start(tab)

        def work() -> tuple[Results, ResultFiles]:
            known = present(session)
            chosen = [*(methods or []), *(baselines or [])]
            for name in chosen:
                check_choice(name, [*models.runnable_adjudicators(), *models.runnable_baselines()], "method")
            options = RunOptions(chosen, world, whole(last, len(known.clip) - 1), bool(backward))
            return self.server.run(known, options, tab, lambda *steps: heard.append(steps), stop)

        with ThreadPoolExecutor(1) as worker:
            future = worker.submit(work)
            while not future.done():
                yield *self.state(True, progress_bar(*heard[-1], time.monotonic() - begun)), *(gr.skip(),) * 8
                wait([future], timeout=0.3)
        try:
            yield *self.state(False, ""), *self.finished(*future.result(), color)
        except Stopped:
            yield *self.state(False, '<p class="note">Stopped.</p>'), *(gr.skip(),) * 8
        except Exception as error:
            yield *self.state(False, f'<p class="refused">{sentence(error)}</p>'), *(gr.skip(),) * 8

    def state(self, busy: bool, said: str) -> tuple[Any, ...]:
        """The button that fits, and a line below it."""
        return gr.Button(visible=not busy), gr.Button(visible=busy), said

    def finished(self, results: Results, files: ResultFiles, color: str) -> tuple[Any, ...]:
        """The results at their last frame."""
        methods, end = list(results.tracks), len(results.clip) - 1
        return (
            results,
            gr.Column(visible=True),
            gr.Radio(choices=[(title_of(name), name) for name in methods], value=methods[0]),
            gr.Slider(maximum=end, value=end),
            self.show_tracks(results, methods[0], end, color),
            self.show_video(results, color),
            links(files),
            CORRECTION_HINT,
        )

    def show_tracks(self, results: Results | None, method: str, frame: Any, color: str) -> Any:
        """Draw the tracks on a frame of the timeline."""
        with sentences():
            if results is None:
                return None
            check_choice(method, list(results.tracks), "method")
            shown = whole(frame, len(results.clip) - 1)
            return draw_results(results.clip, results.tracks[method], results.points, shown, color_by(color))

    def show_video(self, results: Results | None, color: str) -> str | None:
        """The video with the tracks in other colors."""
        with sentences():
            return None if results is None else str(results.videos[color_by(color)])

    def why(self, session: Session | None, number: Any, target: Any, method: str, world: str) -> Iterator[str]:
        """The first pass of the direct path at once; then, if there is more, the result.

        Through time the result needs all frames up to the target.
        """
        with sentences():
            known = present(session)
            if number is None or not known.points:
                raise InputError("There is no point to explain; click one on the frame first.")
            check_world(known, world)
            check_choice(method, models.runnable_adjudicators(), "method")
            points, frame = track_points(known.points), whole(target, len(known.clip) - 1)
            question = Question(known.clip, points, whole(number, len(points) - 1), frame, title_of(method))
            tracker = models.cwm_tracker(method, world)
            if tracker.config.passes > 0 or tracker.config.gaps:
                first = models.cwm_tracker(method, world, passes=0, gaps=())
                yield render_panel(question, explain_point(question, first, self.server.pairs), final=False)
            yield render_panel(question, explain_point(question, tracker, self.server.pairs), final=True)

    def halt(self, request: gr.Request) -> None:
        """Stop the run."""
        with sentences():
            self.server.stop(tab_of(request))

    def leave(self, request: gr.Request) -> None:
        """Close the tab."""
        with sentences():
            self.server.close(tab_of(request))


def fix_note(before: Session, after: Session, frame: int) -> str:
    """What the click on the tracks did, and what comes next."""
    if after.chosen is not None:
        number = track_colors(after.points).index(after.chosen) if after.points else 0
        return f'<p class="note"><b>Track {number}</b> is chosen; now click where it should be in frame {frame}.</p>'
    number = track_colors(after.points).index(before.chosen or 0)
    return f'<p class="note"><b>Track {number}</b> is corrected in frame {frame}; press <b>Track the points</b>.</p>'


def present(session: Session | None) -> Session:
    """The tab's session; a tab from before a restart of the page has none."""
    if session is None:
        raise InputError("The page was restarted; reload it in the browser.")
    return session


def tab_of(request: gr.Request) -> str:
    """The name of the tab, which the browser chooses."""
    return models.valid_tab(request.session_hash)


def serve(server: PageServer, host: str, port: int | None, share: bool, show: bool) -> None:
    """Serve the page until interrupted."""
    models.check_address(host, port)
    server.results.mkdir(parents=True, exist_ok=True)
    gr.set_static_paths([server.results])
    models.cached_world(WORLD)
    Page(server).blocks.queue(max_size=4 * server.limits.tabs).launch(
        server_name=host,
        server_port=port,
        share=share,
        inbrowser=show,
        theme=theme(),
        css_paths=[STYLE],
        footer_links=[],
        max_file_size=f"{server.limits.megabytes}mb",
        ssr_mode=False,
        show_error=False,
        app_kwargs={"middleware": [Middleware(Guard, hosts=Hosts(host, share), limits=server.limits)]},
    )
