"""The parts of the page, section by section."""

import gradio as gr

from lpa_cwm.bundled import GALLERY
from lpa_cwm.page.drawing import posters
from lpa_cwm.page.elements import ASK, CLICKS, COLORS, FIX, SCALE, TIPS, ZOOMS


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
            clicks = [(title, name) for name, title in CLICKS.items()]
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
        gr.HTML(TIPS, elem_id="tips")
        self.baselines = gr.Dropdown(
            label="Baselines to compare with", elem_id="baselines", multiselect=True, filterable=False
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
            gr.HTML(SCALE, elem_id="scale")
        with gr.Row(equal_height=False):
            with gr.Column(scale=1, min_width=320):
                self.still = gr.Image(
                    show_label=False, interactive=False, buttons=[], elem_id="still", type="pil", format="jpeg",
                    container=False,
                )  # fmt: skip
                self.timeline = gr.Slider(0, 1, 0, step=1, label="Frame", elem_id="timeline", buttons=[])
                self.fix = gr.HTML(FIX, elem_id="fix")
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
        self.panel = gr.HTML(ASK, elem_id="panel")
