"""One numbering of the classes, and the layouts that are refused."""

import argparse
import re
import warnings

import pytest

pytest.importorskip("torch")
from PIL import Image
from torchvision import datasets

from patches.support import folders


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A function that makes a data set of these files and gives the arguments that name it."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.argv", ["distributed.py"])

    def make(*files):
        for file in files:
            path = tmp_path / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir() if file.endswith("/") else Image.new("RGB", (8, 8)).save(path, "jpeg")
        return argparse.Namespace(data=str(tmp_path))

    return make


def test_complete_data_set_passes_without_a_word(data, capsys):
    args = data(
        "train/a/1.jpg", "train/b/deep/2.PNG", "val/a/3.jpg", "val/b/4.jpg", "val/labels.txt"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folders.check(args)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            ["val/a/1.jpg"],
            "train: there are no class folders; expected images under DIR/train/CLASS/ and DIR/val/CLASS/",
        ),
        (
            ["train/a/1.jpg"],
            "val: there are no class folders; expected images under DIR/train/CLASS/ and DIR/val/CLASS/",
        ),
        (["train/a/1.jpg", "train/b/1.jpg", "val/"], "val: there are no class folders; expected"),
        (
            ["train/a/1.jpg", "train/b/1.jpg", "val/1.jpg"],
            "val: 1.jpg is in no class folder; expected",
        ),
        (
            ["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/2.png"],
            "val: 2.png is in no class folder; expected",
        ),
        (
            ["train/a/1.jpg", "train/b/", "val/a/1.jpg", "val/b/1.jpg"],
            "train/b: there are no images; expected",
        ),
        (
            ["train/a/1.jpg", "train/b/1.txt", "val/a/1.jpg"],
            "train/b: there are no images; expected",
        ),
        (["train/a/1.jpg", "val/a/"], "val/a: there are no images; expected"),
        (
            ["train/a/1.jpg", "train/.ipynb_checkpoints/", "val/a/1.jpg"],
            "remove it: .ipynb_checkpoints",
        ),
        (
            ["train/a/1.jpg", "val/a/1.jpg", "val/.x/1.jpg"],
            "val: a hidden folder would count as a class, ",
        ),
        (
            ["train/a/1.jpg", "train/@eaDir/a/1.jpg", "val/a/1.jpg"],
            "train: a hidden folder would count as a class, remove it: @eaDir",
        ),
        (
            ["train/a/1.jpg", "train/b/1.jpg", "val/all/1.jpg"],
            "val: all is the only class, train/ has 2; expected",
        ),
        (
            ["train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg"],
            "val: a is the only class, train/ has 2; expected",
        ),
        (
            ["train/a/1.jpg", "train/b/1.jpg", "val/b/1.jpg", "val/c/1.jpg"],
            "val: train/ has no class c",
        ),
        (["train/a/1.jpg", "val/b/1.jpg"], "val: train/ has no class b"),
    ],
)
def test_other_layout_is_refused_in_one_line_of_the_first_process(
    data, capsys, monkeypatch, files, words
):
    args = data(*files)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        with pytest.raises(SystemExit) as ended:
            folders.check(args)
        assert ended.value.code == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == (1 if rank == "0" else 0)
        if rank == "0":
            assert err.startswith(f"distributed.py: error: {args.data}/")
            assert words in err


@pytest.mark.parametrize(
    ("classes", "words"),
    [("abc", "no images of 1 of the 3 classes in train/: b"), ("acdefghi", "6 of the 8.*d, e, ")],
)
def test_class_without_validation_images_is_a_warning_of_rank_0(
    data, monkeypatch, capsys, classes, words
):
    args = data(*(f"train/{name}/1.jpg" for name in classes), "val/a/1.jpg", "val/c/1.jpg")
    folders.check(args)
    err = capsys.readouterr().err
    assert (
        err.startswith("distributed.py: warning: ")
        and re.search(words, err)
        and err.count("\n") == 1
    )
    monkeypatch.setenv("RANK", "1")
    folders.check(args)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("val", [["a", "c"], ["b", "c"], ["c", "d", "b", "a"]])
def test_validation_images_get_the_labels_that_training_has_for_their_folder(data, tmp_path, val):
    data(
        *(f"train/{name}/1.jpg" for name in "abcd"),
        *(f"val/{name}/{n}.jpg" for name in val for n in (1, 2)),
    )
    training = datasets.ImageFolder(tmp_path / "train")
    dataset = datasets.ImageFolder(tmp_path / "val")
    assert folders.relabel_like(dataset, training) is None
    assert len(dataset) == 2 * len(val)
    wanted = [("abcd".index(name)) for name in sorted(val) for _ in (1, 2)]
    assert [dataset[i][1] for i in range(len(dataset))] == wanted == dataset.targets
    assert [path.split("/")[-2] for path, _ in dataset.imgs] == [
        dataset.classes[label] for label in wanted
    ]
    assert training.targets == [0, 1, 2, 3]


def test_class_names_are_those_that_image_folder_numbers(data, tmp_path):
    data("b/1.jpg", "B/1.jpg", "a/1.jpg", "c.jpg")
    names = folders.class_names(tmp_path)
    assert names == ["B", "a", "b"] == datasets.ImageFolder(tmp_path).classes
    assert folders.class_names(tmp_path / "c.jpg") == folders.class_names(tmp_path / "d") == []


@pytest.mark.parametrize(
    "file, place",
    [
        ("a/.ipynb_checkpoints/2.jpg", "a/.ipynb_checkpoints"),
        ("b/deep/er/.x/y/2.jpg", "b/deep/er/.x"),
        ("a/@eaDir/1.jpg/SYNOPHOTO_THUMB_M.jpg", "a/@eaDir"),
        ("a/x/@Recycle/2.jpg", "a/x/@Recycle"),
        ("a/#recycle/2.jpg", "a/#recycle"),
        ("a/__MACOSX/2.jpg", "a/__MACOSX"),
        ("a/._1.jpg", "a/._1.jpg"),
    ],
)
@pytest.mark.parametrize("part", ["train", "val"])
def test_hidden_images_inside_a_class_are_refused_in_one_line(data, capsys, part, file, place):
    """B2: they counted as images of the class."""
    args = data("train/a/1.jpg", "train/b/1.jpg", "val/a/1.jpg", "val/b/1.jpg", f"{part}/{file}")
    folders.check(args)  # it looks no further than the first image of each class
    with pytest.raises(SystemExit) as ended:
        folders.relabel_like(
            *(datasets.ImageFolder(f"{args.data}/{name}") for name in ("val", "train"))
        )
    assert ended.value.code == 2
    words = f"{args.data}/{part}: hidden images would count, 1 in all; remove them: {place}"
    assert capsys.readouterr() == ("", f"distributed.py: error: {words}\n")


def test_many_hidden_images_are_still_one_line(data, capsys):
    """B2: all are counted, some folders are named."""
    args = data(*(f"{name}/.x/{number}.jpg" for name in "abcdefg" for number in (1, 2)))
    with pytest.raises(SystemExit):
        folders.refuse_hidden(datasets.ImageFolder(args.data))
    line = f"{args.data}: hidden images would count, 14 in all; remove them: a/.x, b/.x, c/.x, d/.x, e/.x, ..."
    assert capsys.readouterr().err == f"distributed.py: error: {line}\n"


def test_names_that_only_look_hidden_pass(data, tmp_path):
    """B2: a dot further on, a folder above the data set, and hidden folders without images."""
    root = ".cache/@eaDir/sets/"
    data(root + "a/x.y/1.jpg", root + "a/z@eaDir/@eaDir.jpg", root + "a/eaDir./x.jpg")
    data(root + "a/.empty/")
    dataset = datasets.ImageFolder(str(tmp_path / root))
    assert len(dataset) == 3
    folders.relabel_like(dataset, dataset)
    folders.relabel_like(*[datasets.ImageFolder(str(tmp_path / root) + "/")] * 2)
