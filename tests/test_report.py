"""The page that `report` writes, and the picture that `plot` draws."""

import json
import re
from html.parser import HTMLParser
from itertools import chain
from pathlib import Path

import pytest
from conftest import relock, replace
from test_cli import SITUATIONS

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from patcher.build import build
from patcher.build.project import Project, Request
from patcher.page import blame, curves, runs

VOID = {"meta", "link", "col", "br", "img", "input", "hr"}


@pytest.fixture
def project(small_project):
    return small_project


class Page(HTMLParser):
    """The elements of a page: tag, attributes, and text; complains of a tag left open."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict, list[str]]] = []
        self.open: list[tuple[str, dict, list[str]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), (tag, attributes)
        element = (tag, dict(attributes), [])
        self.elements.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        for _, _, said in self.open:
            said.append(data)

    def all(self, tag: str, **wanted: str) -> list[tuple[dict, str]]:
        """Attributes and text of the elements with a tag; `class_` holds one of their classes."""
        found = [(having, "".join(said)) for name, having, said in self.elements if name == tag]
        if wanted:
            found = [
                one for one in found if wanted["class_"] in (one[0].get("class") or "").split()
            ]
        return found


def train(epoch: int, step: int, **more) -> dict:
    line = {"kind": "train", "epoch": epoch, "step": step, "steps": 4, "lr": 0.1, "acc1": 50.0}
    speed = {"images_per_second": 100.0 * (step + 1), "data_wait": 0.25, "device_memory": None}
    return line | speed | {"loss": 2.0 - 0.1 * epoch} | more


def val(epoch: int, **more) -> dict:
    return {"kind": "val", "epoch": epoch, "loss": 1.5, "acc1": 60.0 - 10 * epoch} | more


def write_run(folder: Path, *lines: dict, end: str = "") -> Path:
    folder.mkdir(parents=True)
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text + end)
    return folder


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "runs/$a<b>", train(0, 0), train(0, 3), val(0), train(1, 3), val(1))


@pytest.fixture
def page(project, patcher, run) -> Page:
    assert patcher("apply").code == 0
    assert patcher("report", run, "-o", "report.html").code == 0
    return Page(Path("report.html").read_text())


# The page


def test_the_page_needs_nothing_but_itself(page):
    text = Path("report.html").read_text()
    assert text.startswith("<!doctype html>\n")
    assert page.all("script") == []
    loading = ("src", "srcset", "data", "poster", "action", "background")
    assert [having for _, having, _ in page.elements if set(loading) & having.keys()] == []
    assert [having["href"] for having, _ in page.all("link")] == ["data:,"]
    assert all(target.startswith("#c") for target in re.findall(r"url\((.*?)\)", text))
    assert "@import" not in text


def test_every_id_is_there_once_and_every_link_inside_leads_to_one(page):
    ids = [having["id"] for _, having, _ in page.elements if "id" in having]
    assert len(ids) == len(set(ids))
    named = ("href", "xlink:href", "aria-labelledby", "clip-path")
    wanted = [having[key] for _, having, _ in page.elements for key in named if key in having]
    inside = [re.sub(r"^#|^url\(#|\)$", "", link) for link in wanted if "://" not in link]
    assert set(inside) - {"data:,"} <= set(ids)


def test_the_page_can_be_read_aloud_and_used_with_the_keyboard(page):
    assert page.all("html")[0][0]["lang"] == "en"
    assert len(page.all("main")) == len(page.all("h1")) == len(page.all("title")) == 1
    first = next(having for tag, having, _ in page.elements if tag == "a")
    assert first["href"] == "#main"
    assert len(page.all("caption")) == len(page.all("table")) > 0
    assert all(having.get("scope") in ("col", "row") for having, _ in page.all("th"))
    assert all(having["aria-label"] for having, _ in page.all("figure"))
    assert all(text.strip() for _, text in page.all("a") + page.all("summary") + page.all("h2"))
    assert page.all("summary")[0][1]
    assert not any({"onclick", "tabindex"} & having.keys() for having, _ in page.all("a"))


def test_the_table_has_each_patch_with_its_reason_verdict_and_origin(page, project):
    small = Project(project)
    for patch in small.patches_of(Request("standard")):
        (row,) = (
            text for having, text in page.all("tr") if having.get("id") == f"patch-{patch.slug()}"
        )
        assert patch.summary() in row
        assert "clean" in row
        assert patch.origin in [having["href"] for having, _ in page.all("a")]


def test_both_sides_of_a_diff_are_the_files(page, project):
    """All lines of upstream on the left, all of the build on the right, each once and in order."""
    for side, folder in (("left", "upstream"), ("right", "build")):
        cells = [text for having, text in page.all("td", class_=side) if "code" in having["class"]]
        numbers = [
            text for having, text in page.all("td", class_=side) if "n" in having["class"].split()
        ]
        files = [project / folder / name for name in ("dataparallel.py", "distributed.py")]
        lines = [file.read_text().splitlines() for file in files]
        assert cells == [*chain(*lines)]
        assert numbers == [str(n) for of in lines for n in range(1, len(of) + 1)]


def test_each_change_names_the_patch_that_made_it(page, project):
    changes = page.all("tr", class_="changed")
    assert any("patcher itself" in text and "@generated" in text for _, text in changes)
    for name, line in (
        ("reshape_topk", "reshape(-1)"),
        ("local_rank_from_env", "LOCAL_RANK"),
        ("configurable_gpus", "gpu_list.select_gpus"),
    ):
        assert any(name in text and line in text for _, text in changes), name


def test_the_page_is_the_same_bytes_again(page, patcher, run):
    first = Path("report.html").read_bytes()
    assert patcher("report", run, "-o", "again.html").code == 0
    assert Path("again.html").read_bytes() == first


def test_what_is_wrong_stands_on_the_page_and_ends_it_as_check(project, patcher):
    replace(project / "upstream/distributed.py", b"[:k].view(-1)", b"[:k].flatten()")
    relock(project)
    assert patcher("check").code == 1
    done = patcher("report", "-o", "report.html")
    assert done.code == 1
    assert "reshape_topk: stale" in done.out
    page = Page(Path("report.html").read_text())
    assert any("reshape_topk: stale" in text for _, text in page.all("li"))
    assert "1 stale" in [text for _, text in page.all("span", class_="stale")]
    assert sum("Not built" in text for _, text in page.all("p")) == 2


@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_exit_status_is_that_of_check_in_every_situation(fresh, patcher, situation):
    spoil, codes = SITUATIONS[situation]
    spoil(fresh)
    done = patcher("report", "--root", fresh, "-o", "page/report.html")
    said = done.out + done.err
    assert (done.code, "Traceback" in said) == (codes[1], False), said
    if Path("page/report.html").exists():
        said = [text for _, text in Page(Path("page/report.html").read_text()).all("strong")]
        assert ("error:" in said) == (done.code > 0)
    else:
        assert situation in ("no lock", "crash in the series"), said


def test_what_verify_has_said_is_shown(project, patcher):
    finding = {"group": "machine", "name": "<cores>", "state": "failed", "message": "2", "hint": ""}
    Path("verify.json").write_text(json.dumps({"command": "verify", "findings": [finding]}))
    patcher("report", "--verify", "verify.json")
    page = Page(Path("report.html").read_text())
    assert any("machine: <cores>" in text for _, text in page.all("th"))
    Path("verify.json").write_text('{"command": "check"}')
    done = patcher("report", "--verify", "verify.json")
    assert (done.code, done.out) == (2, "")
    assert "verify.json: not what verify says as json" in done.err


# Colours: WCAG 2.1, AA


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_what_it_is_known_to_be():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.01)


def themes() -> list[dict[str, str]]:
    style = Path(curves.__file__).with_name("report.html").read_text()
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    return [dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block)) for block in blocks]


def test_the_curves_have_the_colours_of_the_light_theme():
    light, dark = themes()
    assert light.keys() == dark.keys()
    assert tuple(light[f"run-{n}"] for n in range(1, len(curves.COLOURS) + 1)) == curves.COLOURS
    assert len(curves.DASHES) == len(curves.COLOURS)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_a_contrast_of_4_5_and_curves_one_of_3(theme):
    of = themes()[theme]
    texts = {"ground": ("ink", "quiet", "link", "good", "bad", "warn"), "panel": ("ink", "quiet")}
    texts |= dict.fromkeys(("added", "added-part", "removed", "removed-part"), ("ink",))
    low = [(a, b) for b, inks in texts.items() for a in inks if contrast(of[a], of[b]) < 4.5]
    low += [
        (name, "ground") for name in of if "run-" in name and contrast(of[name], of["ground"]) < 3
    ]
    assert low == []


def test_no_colour_is_used_that_is_not_of_a_theme():
    style = Path(curves.__file__).with_name("report.html").read_text()
    light, dark = themes()
    used = set(re.findall(r"var\(--([\w-]+)\)", style))
    assert used <= light.keys()
    assert len(re.findall(r"#[0-9a-f]{6}\b", style)) == len(light) + len(dark)


# Runs


def test_a_curve_lies_at_the_epoch_that_is_over(run):
    (one,) = runs.read_all([str(run)])
    assert one.curve("train", "images_per_second") == [(0.25, 100), (1, 400), (2, 400)]
    assert one.curve("val", "acc1") == [(1, 60), (2, 50)]
    assert one.curve("train", "device_memory") == []
    assert one.summary()["best Acc@1"] == "60.00 %"
    assert one.summary()["last Acc@1"] == "50.00 %"
    assert one.summary()["waiting for data"] == "25.0%"


def test_runs_of_one_name_are_told_apart(tmp_path):
    paths = [write_run(tmp_path / name / "out", val(0)) for name in ("x", "y")]
    assert [one.name for one in runs.read_all(list(map(str, paths)))] == ["x/out", "y/out"]
    again = runs.read_all([str(paths[0]), str(paths[0] / "metrics.jsonl")])
    assert len({one.name for one in again}) == 2


@pytest.mark.parametrize(
    "end, says",
    [
        ('{"kind": "tr', ":2: cut: the run is going on, or was killed; left out"),
        ("nonsense\n", ":2: not a JSON object; left out"),
        ("[1]\n", ":2: not a JSON object; left out"),
    ],
)
def test_a_line_that_is_cut_is_said_and_left_out(tmp_path, patcher, end, says):
    folder = write_run(tmp_path / "run", val(0), end=end)
    done = patcher("plot", folder, "-o", tmp_path / "c.png")
    assert done.code == 0
    assert f"warning: {folder / 'metrics.jsonl'}{says}\n" in done.out
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_without_lines_is_no_picture_but_a_page(project, patcher):
    folder = write_run(project / "run")
    done = patcher("plot", folder)
    assert (done.code, done.out) == (2, "")
    assert "nothing to draw" in done.err
    assert patcher("apply").code == patcher("report", folder).code == 0
    assert "holds no line yet" in Path("report.html").read_text()


@pytest.mark.parametrize("command", ["plot", "report"])
def test_a_run_without_metrics_ends_in_one_line_that_says_what_to_do(project, patcher, command):
    (project / "run").mkdir()
    for path, what in (("run", "has no metrics.jsonl"), ("nosuch", "no such run")):
        done = patcher(command, path)
        assert (done.code, done.out) == (2, "")
        assert done.err.splitlines()[0] == f"error: {path}: {what}"
        assert "--output-dir" in done.err


@pytest.mark.parametrize("command", ["plot", "report"])
def test_a_missing_library_ends_in_one_line(project, patcher, run, monkeypatch, command):
    monkeypatch.setattr("patcher.page.find_spec", lambda name: None)
    done = patcher(command, run)
    assert done.code == 2
    assert done.err.endswith("matplotlib\n  Run `pip install jinja2 matplotlib`.\n")


def test_a_picture_has_a_known_ending_and_a_folder_that_can_be_written(run, patcher, tmp_path):
    done = patcher("plot", run, "-o", "curves.exe")
    assert (done.code, done.err) == (
        2,
        "error: curves.exe: expected a name ending in .png, .svg, .pdf\n",
    )
    (tmp_path / "file").touch()
    done = patcher("plot", run, "-o", tmp_path / "file/c.png")
    assert done.code == 2
    assert "cannot be written" in done.err


def test_a_run_has_its_name_in_the_picture(run, tmp_path, patcher):
    under = write_run(tmp_path / "runs/_x", val(0))
    assert patcher("plot", run, under, "-o", tmp_path / "c.svg").code == 0
    text = (tmp_path / "c.svg").read_text()
    assert "$a&lt;b&gt;, validation" in text
    assert "_x, validation" in text


# Which patch a line is of


def test_the_last_stage_is_what_the_engine_renders(project):
    small = Project(project)
    plan = build.plan(small, Request("standard"))
    for result in plan.rendered:
        *_, (_, last) = blame.stages(result.file, result.before, plan.patches, small.support())
        assert last == result.after


def test_a_line_edited_twice_is_of_both_patches_and_a_new_one_of_its_own():
    steps = [("one", b"a\nvalue = f(1)\nz\n"), ("two", b"a\nvalue = f(1, 2)\nnew\nz\n")]
    (_, changed, _) = blame.blocks(b"a\nvalue = f()\nz\n", steps)
    assert [(left and left.text, right.text, right.names) for left, right in changed.pairs] == [
        ("value = f()", "value = f(1, 2)", ("one", "two")),
        (None, "new", ("two",)),
    ]
    assert changed.pairs[0][0].names == ("one", "two")


def test_lines_far_from_a_change_are_folded():
    source = b"".join(b"%d\n" % n for n in range(30))
    found = blame.blocks(source, [("one", source.replace(b"15\n", b"fifteen\n"))])
    assert [(block.kind, len(block.pairs)) for block in found] == [
        ("far", 12),
        ("near", 3),
        ("changed", 1),
        ("near", 3),
        ("far", 11),
    ]
