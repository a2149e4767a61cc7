"""Naming, counting and skipping files that cannot be decoded."""

import io
from functools import partial

import pytest

pytest.importorskip("torch")
from PIL import Image  # noqa: E402

from patches.support import decode  # noqa: E402

LIST = "skipped_images.txt"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A class folder with the grey images 0.png to 4.png: pixel value 10 times the number."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr("sys.argv", ["dir/dataparallel.py"])
    (tmp_path / "class").mkdir()
    for number in range(5):
        Image.new("L", (4, 4), 10 * number).save(tmp_path / "class" / f"{number}.png")
    (tmp_path / "class" / "notes.txt").write_text("no image\n")
    return tmp_path / "class"


def truncated() -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 50).save(buffer, "jpeg")
    return buffer.getvalue()[:800]


def spoil(folder, *numbers):
    for number in numbers:
        (folder / f"{number}.png").write_bytes(b"no image")


def value(image) -> int:
    assert image.mode == "RGB"
    return image.getpixel((0, 0))[0]


def test_good_image_is_loaded_and_nothing_is_listed(folder):
    assert value(decode.load_image(str(folder / "3.png"), 2)) == 30
    assert not (folder.parent / LIST).exists()


@pytest.mark.parametrize("content", [b"", b"no image", truncated()], ids=["empty", "text", "truncated"])
def test_file_that_cannot_be_decoded_is_named_with_the_reason(folder, content):
    path = folder / "1.png"
    path.write_bytes(content)
    with pytest.raises(RuntimeError) as caught:
        decode.load_image(str(path))
    assert str(caught.value).startswith(f"cannot decode {path}: ")
    assert ("truncated" in str(caught.value)) == (content[:2] == b"\xff\xd8")
    assert "\n" not in str(caught.value)
    assert not (folder.parent / LIST).exists()


def test_next_image_of_the_folder_takes_the_place(folder, capsys):
    spoil(folder, 1, 4)
    load = partial(decode.load_image, skip=2)
    assert value(load(str(folder / "1.png"))) == 20
    assert value(load(str(folder / "4.png"))) == 0  # after the last comes the first
    assert value(load(str(folder / "1.png"))) == 20  # a second epoch: reported and counted once
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    for count, (line, number) in enumerate(zip(lines, (1, 4)), start=1):
        assert line.startswith(f"dataparallel.py: skipped {folder}/{number}.png: UnidentifiedImageError: ")
        assert line.endswith(f" ({count} of at most 2)")
    listed = (folder.parent / LIST).read_text().splitlines()
    assert [line.partition("\t")[0] for line in listed] == [f"{folder}/1.png", f"{folder}/4.png"]


def test_one_more_than_allowed_is_an_error_that_names_the_last(folder):
    spoil(folder, 0, 2, 4)
    load = partial(decode.load_image, skip=2)
    load(str(folder / "4.png"))  # finds 0 to be bad, too
    with pytest.raises(RuntimeError, match=r"more than 2 images cannot be decoded; the last is .*/2\.png: Unid"):
        load(str(folder / "2.png"))


def test_folder_without_any_good_image_is_an_error_and_no_endless_search(folder):
    spoil(folder, *range(5))
    with pytest.raises(RuntimeError, match="no image in this folder can be decoded"):
        decode.load_image(str(folder / "2.png"), 100)
    assert len((folder.parent / LIST).read_text().splitlines()) == 5


def test_first_process_of_a_host_starts_a_new_list(folder, monkeypatch):
    for rank, left in (("1", True), ("0", False), ("0", False)):
        monkeypatch.setenv("LOCAL_RANK", rank)
        if rank == "1":
            (folder.parent / LIST).write_text("old\n")
        decode.check(None)
        assert (folder.parent / LIST).exists() == left
