"""`lpa-cwm demo`: a page in the browser."""

import os
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lpa_cwm.errors import need


@dataclass(frozen=True)
class Demo:
    """Open a local page: click points, follow them, see which answers were believed and why."""

    host: str = "127.0.0.1"
    """Address to serve; the default is this machine alone."""
    port: int | None = None
    """Port to serve; without it, the first free one from 7860 on."""
    share: bool = False
    """Make the page reachable from everywhere through a tunnel of Gradio's makers."""
    show: bool = True
    """Open the browser."""

    def run(self) -> None:
        """Serve until interrupted; uploads and results are gone afterwards."""
        # A service manager ends the page with this signal; the folder must go then, too.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with tempfile.TemporaryDirectory(prefix="lpa-cwm-") as folder:
            # Gradio reads both when it is imported.
            os.environ["GRADIO_TEMP_DIR"] = str(Path(folder) / "cache")
            os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
            need("gradio", "demo")
            from lpa_cwm.page.app import serve
            from lpa_cwm.page.server import DemoServer

            serve(DemoServer(Path(folder)), self.host, self.port, self.share, self.show)
