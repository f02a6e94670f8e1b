"""The live view on a terminal: panels that follow a run and the terminal's size. Textual draws.

Whatever comes from the run reaches the screen as escaped text, never as markup. Leaving the view leaves the
run alone. Knows nothing of how a run is read.
"""

from __future__ import annotations

from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.widgets import Static

from cli.conclusion import Conclusion, conclude
from cli.live_panels import Panel, draw_head, panels, safe
from cli.live_style import palette, styles
from cli.live_watch import Watch
from dflash.contract.errors import DFlashError
from profiler.live.view import LiveView

wide_columns = 120
least_columns = 36
left, right = ("pace", "pipeline", "memory"), ("gpus", "threads")  # side by side on a wide screen
_style_sheet = """
Screen { background: $ground; color: $ink; overflow: hidden; }
#foot { dock: bottom; height: auto; padding: 0 1; color: $muted; background: $card; }
#body { height: 1fr; scrollbar-size-vertical: 1; scrollbar-gutter: stable; scrollbar-background: $ground;
  scrollbar-color: $grid; scrollbar-color-hover: $muted; scrollbar-background-hover: $ground; }
#columns { height: auto; layout: vertical; }
.column { height: auto; width: 1fr; }
LivePanel { height: auto; border: round $grid; border-title-color: $muted; padding: 0 1; }
LivePanel#head { border: none; }
LivePanel.bad { border: round $bad; }
LivePanel.good { border: round $good; }
.wide #columns { layout: horizontal; }
.wide #left { width: 4fr; }
.wide #right { width: 3fr; min-width: 60; }
"""


def _style_text() -> str:
    sheet = _style_sheet
    for name, colour in palette.items():
        sheet = sheet.replace(f"${name}", colour)
    return sheet


class Drawing:
    """A panel's drawing of one view, made for whatever width it is given."""

    def __init__(self, draw: Panel, view: LiveView) -> None:
        self._draw, self._view = draw, view

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._draw(self._view, max(options.max_width, least_columns))


class LivePanel(Static):
    """One part of the view."""

    def __init__(self, draw: Panel, *, id: str, title: str | None = None) -> None:  # noqa: A002 - Textual's word
        super().__init__("", id=id, markup=False)
        self._draw = draw
        self.border_title = title

    def show(self, view: LiveView) -> None:
        """Draw a new view."""
        self.update(Drawing(self._draw, view))


class LiveApp(App[None]):
    """Watches one run until somebody leaves; once the run is over, has its report written."""

    CSS = _style_text()
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(0, "narrow"), (wide_columns, "wide")]  # noqa: RUF012 - as Textual declares it
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "leave", priority=True),
        Binding("ctrl+c", "quit", "leave", priority=True, show=False),
        Binding("ctrl+q", "quit", "leave", priority=True, show=False),
    ]

    def __init__(self, watch: Watch, *, ansi_color: bool | None = None) -> None:
        super().__init__(ansi_color=ansi_color)
        self._watch = watch
        self.view: LiveView | None = None  # the last one shown
        self.trouble: DFlashError | None = None  # why it ended by itself
        self.conclusion: Conclusion | None = None  # once the run is over and the report written

    def compose(self) -> ComposeResult:
        made = {name: LivePanel(draw, id=name, title=title) for name, title, draw in panels}
        yield LivePanel(draw_head, id="head")
        with VerticalScroll(id="body"):
            yield made.pop("verdict")
            with Horizontal(id="columns"):
                for side, names in (("left", left), ("right", right)):
                    with Vertical(id=side, classes="column"):
                        yield from (made.pop(name) for name in names)
            yield from made.values()
        yield Static(self._foot("reading the run …"), id="foot", markup=False)

    def on_mount(self) -> None:
        self.query_one("#body").focus()
        self.look()

    @work(thread=True, exclusive=True, group="look")
    def look(self) -> None:
        """Look at the run, off the screen's thread, and plan the next look."""
        try:
            view = self._watch.look()
        except DFlashError as error:  # the run's directory is gone, or no longer one
            self.trouble = error
            self.call_from_thread(self.exit)
            return
        self.call_from_thread(self.show, view)

    def show(self, view: LiveView) -> None:
        """Draw a view; go on looking unless the run is over."""
        self.view = view
        for panel in self.query(LivePanel):
            panel.show(view)
        tone = {"sick": "bad", "stalled": "bad", "failed": "bad", "healthy": "good"}.get(view.verdict.mood)
        verdict = self.query_one("#verdict")
        verdict.set_class(tone == "bad", "bad")
        verdict.set_class(tone == "good", "good")
        if view.run.over:
            self._tell("the run is over; writing its report …")
            self.finish()
        else:
            self._tell("q leaves; the trainer goes on")
            self.set_timer(self._watch.interval_s, self.look)

    @work(thread=True, exclusive=True, group="finish")
    def finish(self) -> None:
        """Have the report written, and say where it is."""
        self.conclusion = conclude(self._watch.path)
        report = self.conclusion.report
        told = f"report: {report}" if report else f"no report: {'; '.join(self.conclusion.troubles)}"
        self.call_from_thread(self._tell, f"the run is over · {told} · q leaves")

    def _tell(self, words: str) -> None:
        self.query_one("#foot", Static).update(self._foot(words))

    def _foot(self, words: str) -> Text:
        return Text(safe(words), styles["muted"])
