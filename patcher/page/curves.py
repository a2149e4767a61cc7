"""The curves of runs, drawn by matplotlib: one picture, or SVG for a page that has two themes."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from patcher.core.problem import UsageError
from patcher.page.runs import RecordedRun

# On white; the page has a set of its own for a dark ground.  Told apart by colour and by dashes.
COLOURS = ("#0b5cad", "#b34700", "#1a7f37", "#8e3fb0", "#a40e26", "#5c6600")
DASHES = ((), (6, 2), (2, 2), (7, 2, 2, 2), (7, 2, 2, 2, 2, 2), (1, 4))
KINDS = ("png", "svg", "pdf")
INK, GRID = "#24292f", "#d0d7de"
STYLE: Any = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 10,
    "grid.color": GRID,
    "svg.hashsalt": "patcher",  # the same ids each time
    "svg.fonttype": "none",  # text stays text: it can be read aloud and searched
    "text.color": INK,
    "text.parse_math": False,  # a dollar in the name of a run is a dollar
    "xtick.color": INK,
    "ytick.color": INK,
}


class Panel(NamedTuple):
    """What one of the small pictures shows: (kind of line, field) pairs in one unit."""

    title: str
    fields: Sequence[tuple[str, str]]
    scale: float = 1


PANELS = (
    Panel("Loss", (("train", "loss"), ("val", "loss"))),
    Panel("Acc@1 in %", (("train", "acc1"), ("val", "acc1"))),
    Panel("Acc@5 in %", (("train", "acc5"), ("val", "acc5"))),
    Panel("Learning rate", (("train", "lr"),)),
    Panel("Images/s, all ranks", (("train", "images_per_second"),)),
    Panel("Waiting for data, % of the time", (("train", "data_wait"),), 100),
    Panel("Device memory in MiB", (("train", "device_memory"),)),
)


def save(runs: Sequence[RecordedRun], path: Path) -> None:
    """Write one picture of all panels that have something to show."""
    panels, kind = _filled(runs), path.suffix.lstrip(".").lower()
    if kind not in KINDS:
        raise UsageError(f"expected a name ending in .{', .'.join(KINDS)}", file=str(path))
    if not panels:
        hint = "Wait for the first line that the training prints."
        raise UsageError("nothing to draw: no run has a line yet", hint=hint)
    with _drawing():
        rows = -(-len(panels) // 2)
        figure = Figure(figsize=(11, 3.2 * rows), layout="constrained")
        places = figure.subplots(rows, 2, squeeze=False).flatten()
        for axes in places:
            axes.set_visible(False)
        for axes, panel in zip(places, panels):
            axes.set_visible(True)
            _draw(axes, runs, panel)
        columns = min(len(runs), 4)
        handles, names = places[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
        content = io.BytesIO()
        figure.savefig(content, format=kind, dpi=150)
    write(path, content.getvalue())


def svgs(runs: Sequence[RecordedRun]) -> list[tuple[str, str]]:
    """Title and `<svg>` of each panel with something to show.

    Colours are variables of the page's style sheet, `--ink`, `--grid` and `--run-1` and on, and
    no id is there twice in a page.
    """
    found = []
    for number, panel in enumerate(_filled(runs)):
        with _drawing():
            figure = Figure(figsize=(5.6, 3.2), layout="constrained")
            _draw(figure.subplots(), runs, panel, titled=False)
            content = io.StringIO()
            nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
            figure.savefig(content, format="svg", transparent=True, metadata=nothing)
        svg = content.getvalue()
        svg = re.sub(r'(\bid="|href="#|url\(#)', rf"\1c{number}-", svg[svg.index("<svg") :])
        for at, colour in enumerate(COLOURS, 1):
            svg = svg.replace(colour, f"var(--run-{at})")
        svg = svg.replace(INK, "var(--ink)").replace(GRID, "var(--grid)")
        svg = re.sub(r"<(metadata|style)\b.*?</\1>", "", svg, flags=re.DOTALL)
        found.append((panel.title, svg))
    return found


@contextlib.contextmanager
def _drawing() -> Iterator[None]:
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a name in Chinese, for one
        yield


def _filled(runs: Sequence[RecordedRun]) -> list[Panel]:
    return [p for p in PANELS if any(run.curve(*field) for run in runs for field in p.fields)]


def _draw(axes: Axes, runs: Sequence[RecordedRun], panel: Panel, titled: bool = True) -> None:
    for number, run in enumerate(runs):
        colour, dashes = (of[number % len(of)] for of in (COLOURS, DASHES))
        for kind, field in panel.fields:
            curve = [(x, y * panel.scale) for x, y in run.curve(kind, field)]
            measured = kind == "val"
            label = f"{run.name}, validation" if measured else run.name
            label = f" {label}" if label.startswith("_") else label  # else it is left out
            axes.plot(
                *zip(*curve or [(float("nan"), float("nan"))]),
                color=colour,
                dashes=dashes or (None, None),
                linewidth=2 if measured else 1,
                marker="o" if measured else "." if len(curve) < 3 else None,
                markersize=4,
                label=label,
            )
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(ticker.MaxNLocator(integer=True, nbins=8))
    axes.margins(x=0.02)
    if titled:
        axes.set_title(panel.title)


def write(path: Path, content: bytes) -> None:
    """Write the file, or say why not."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot be written: {error.strerror}", file=str(path)) from None
