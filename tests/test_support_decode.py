"""Naming, counting and skipping files that cannot be decoded."""

import io
import os
import struct
import subprocess
import sys
from functools import partial

import pytest

pytest.importorskip("torch")
from conftest import REPO
from PIL import Image
from torchvision import datasets

from patches.support import decode

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


@pytest.mark.parametrize(
    "content", [b"", b"no image", truncated()], ids=["empty", "text", "truncated"]
)
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
        assert line.startswith(
            f"dataparallel.py: skipped {folder}/{number}.png: UnidentifiedImageError: "
        )
        assert line.endswith(f" ({count} of at most 2)")
    listed = (folder.parent / LIST).read_text().splitlines()
    assert [line.partition("\t")[0] for line in listed] == [f"{folder}/1.png", f"{folder}/4.png"]


def test_one_more_than_allowed_is_an_error_that_names_the_last(folder):
    spoil(folder, 0, 2, 4)
    load = partial(decode.load_image, skip=2)
    load(str(folder / "4.png"))  # finds 0 to be bad, too
    with pytest.raises(
        RuntimeError, match=r"more than 2 images cannot be decoded; the last is .*/2\.png: Unid"
    ):
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
        decode.new_list()
        assert (folder.parent / LIST).exists() == left


# Modes: what the pixels of a file mean

EIGHT_BITS = (
    "1",
    "L",
    "P",
    "RGB",
    "RGBA",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "LA",
    "PA",
    "RGBX",
    "RGBa",
)
SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
REFUSED = ("I", "F", "La")


def test_every_mode_of_pillow_has_an_outcome_here():
    """B1: a mode that a later Pillow adds gets its own test first."""
    assert set(Image.MODES) <= {*EIGHT_BITS, *SIXTEEN_BITS, *REFUSED}


def pixels(mode):
    """An image of this mode with many values: all that its bytes can be."""
    width = len(Image.new(mode, (8, 1)).tobytes())
    return Image.frombytes(mode, (8, 32), bytes(value % 256 for value in range(32 * width)))


def opened(monkeypatch, image, kind):
    """Let Pillow find this image in all files of this kind."""
    image.format = kind
    monkeypatch.setattr(Image, "open", lambda file: image)


@pytest.mark.parametrize("mode", EIGHT_BITS)
def test_image_of_8_bits_is_what_torchvision_makes_of_it(folder, monkeypatch, mode):
    """B1: nothing changes for other images, byte for byte."""
    opened(monkeypatch, pixels(mode), "PNG")
    path = str(folder / "1.png")
    assert decode.load_image(path).tobytes() == datasets.folder.default_loader(path).tobytes()
    assert decode.load_image(path).mode == "RGB"


@pytest.mark.parametrize("mode", SIXTEEN_BITS)
@pytest.mark.parametrize("skip", [0, 1])  # validation, and training
def test_grey_image_of_16_bits_is_scaled_to_8(folder, monkeypatch, mode, skip):
    """B1: Pillow makes all over 255 white."""
    numbers = [0, 255, 256, 257, 511, 512, 4095, 32767, 32768, 65279, 65280, 65535]
    little = sys.byteorder == "little" if mode == "I;16N" else mode != "I;16B"
    data = struct.pack(("<" if little else ">") + "12H", *numbers)
    opened(monkeypatch, Image.frombytes(mode, (12, 1), data), "PNG")
    image = decode.load_image(str(folder / "1.png"), skip)
    assert image.mode == "RGB"
    assert list(image.tobytes()) == [number >> 8 for number in numbers for _ in "RGB"]


@pytest.mark.parametrize("mode", REFUSED)
def test_mode_of_which_nobody_knows_what_is_white_is_a_bad_image(folder, monkeypatch, capsys, mode):
    """B1: the file and the mode are named."""
    path = str(folder / "1.png")
    opened(monkeypatch, pixels(mode), "TIFF")
    with pytest.raises(RuntimeError) as caught:
        decode.load_image(path)
    words = str(caught.value).replace(",", " ").split()
    assert words[:3] == ["cannot", "decode", path + ":"] and {mode, mode + ":"} & set(words)


def tiff(data, *, bits=16, order="<", white=1, kind=1) -> bytes:
    """A grey TIFF of one pixel; `white` 0: 0 is white, `kind` 1: unsigned, 2: signed, 3: float."""
    shorts = {
        256: 1,
        257: 1,
        258: bits,
        259: 1,
        262: white,
        273: 8,
        277: 1,
        278: 1,
        279: len(data),
        339: kind,
    }
    head = struct.pack(order + "2sHI", {"<": b"II", ">": b"MM"}[order], 42, 8 + len(data)) + data
    entries = b"".join(
        struct.pack(order + "HHIHH", tag, 3, 1, value, 0) for tag, value in shorts.items()
    )
    return head + struct.pack(order + "H", len(shorts)) + entries + bytes(4)


def png(number) -> bytes:
    buffer = io.BytesIO()
    Image.frombytes("I;16", (1, 1), struct.pack("<H", number)).save(buffer, "png")
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content, grey",
    [
        pytest.param(png(0x7FFF), 0x7F, id="PNG"),
        pytest.param(tiff(b"\xff\x7f"), 0x7F, id="TIFF"),
        pytest.param(tiff(b"\x7f\xff", order=">"), 0x7F, id="big-endian TIFF"),
        pytest.param(tiff(b"\x7f\0", bits=8), 0x7F, id="TIFF of 8 bits"),
        pytest.param(tiff(b"\x7f\0", bits=8, white=0), 0x80, id="TIFF of 8 bits, 0 is white"),
        pytest.param(b"P5 1 1 65535\n\x7f\xff", 0x7F, id="PGM of 16 bits"),
        pytest.param(b"P5 1 1 4095\n\x0f\xff", 0xFF, id="PGM of 12 bits"),
        pytest.param(b"P2 1 1 1000\n500\n", 0x80, id="PGM in text"),
        pytest.param(b"P6 1 1 65535\n" + 3 * b"\x7f\xff", 0x7F, id="PPM of 16 bits"),
        pytest.param(tiff(b"\xff\x0f", bits=12), "I;16", id="TIFF of 12 bits"),
        pytest.param(tiff(b"\xff\x7f", white=0), "I;16", id="TIFF, 0 is white"),
        pytest.param(tiff(b"\xff\x7f", kind=2), "I", id="signed TIFF"),
        pytest.param(tiff(b"\xff\xff\xff\x7f", bits=32), "I", id="TIFF of 32 bits"),
        pytest.param(tiff(struct.pack("<f", 0.5), bits=32, kind=3), "F", id="TIFF of fractions"),
        pytest.param(b"Pf\n1 1\n-1.0\n" + struct.pack("<f", 0.5), "F", id="PFM"),
    ],
)
def test_file_with_more_than_8_bits_is_scaled_or_refused_with_its_mode(folder, content, grey):
    """B1: 16-bit PNG and TIFF were white, float TIFF black."""
    path = folder / "1.png"
    path.write_bytes(content)
    if isinstance(grey, int):
        assert value(decode.load_image(str(path))) == grey
        return
    with pytest.raises(
        RuntimeError, match=f"^cannot decode {path}: ValueError: .* of mode {grey}: it is not clear"
    ):
        decode.load_image(str(path))
    assert (
        value(decode.load_image(str(path), 1)) == 20
    )  # in training, another one may take its place


@pytest.mark.parametrize(
    "mode, kind",
    [(mode, "PNG") for mode in ("1", "L", "LA", "P", "RGB", "RGBA")]
    + [(mode, "TIFF") for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "LAB", "YCbCr")]
    + [(mode, "JPEG") for mode in ("L", "RGB", "CMYK")]
    + [(mode, "WEBP") for mode in ("RGB", "RGBA")]
    + [(mode, "BMP") for mode in ("1", "L", "P", "RGB")],
)
def test_file_of_8_bits_is_decoded_as_torchvision_does(folder, mode, kind):
    """B1: the formats that ImageFolder lists."""
    path = str(folder / "image")
    pixels(mode).save(path, kind)
    upstream = datasets.folder.default_loader(path)
    assert decode.load_image(path).tobytes() == upstream.tobytes()


# Names: bytes, and any of them but 0 and the slash

NAMES = {
    b"a\tb.png": "a\\x09b.png",
    b"a\nb.png": "a\\x0ab.png",
    b"a\rb.png": "a\\x0db.png",
    b"a\x1b[31mb.png": "a\\x1b[31mb.png",
    b"a\\tb.png": "a\\x5ctb.png",
    b"\xff\xe9.png": "\\xff\\xe9.png",
    "é 日.png".encode(): "é 日.png",
}


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_skipped_and_counted_once(folder, name, capsys):
    """B18: a tab cut the name, and what is not UTF-8 was a UnicodeEncodeError."""
    path = os.fsdecode(os.path.join(os.fsencode(folder), name))
    with open(path, "wb") as file:
        file.write(b"no image")
    spoil(folder, 0)
    for _ in range(3):  # epochs
        decode.load_image(path, 2)
        decode.load_image(str(folder / "0.png"), 2)
    (one, two) = capsys.readouterr().err.splitlines()
    assert (
        one.startswith(f"dataparallel.py: skipped {folder}/{NAMES[name]}: Un")
        and "(1 of at most 2)" in one
    )
    assert two.endswith(" (2 of at most 2)")
    listed = (folder.parent / LIST).read_bytes().split(b"\n")
    assert len(listed) == 3 and listed[2] == b""
    assert [line.count(b"\t") for line in listed[:2]] == [1, 1]
    undone = listed[0].partition(b"\t")[0].decode("latin-1")  # as `printf %b` does
    for code in (9, 10, 13, 27, 92):
        undone = undone.replace(f"\\x{code:02x}", chr(code))
    assert undone.encode("latin-1") == os.fsencode(path)


def test_two_names_that_differ_in_what_is_escaped_are_two(folder):
    """B18: a tab, and a backslash with a t, are not the same."""
    for name in ("a\tb.png", "a\\tb.png", "a\\x09b.png"):
        (folder / name).write_bytes(b"no image")
        decode.load_image(str(folder / name), 3)
    assert len((folder.parent / LIST).read_bytes().splitlines()) == 3


def test_error_names_any_file_on_one_line(folder):
    """B18: also in the message that ends a run."""
    path = os.fsdecode(os.path.join(os.fsencode(folder), b"\xff\n.png"))
    with open(path, "wb") as file:
        file.write(b"no image")
    for skip in (0, 1):
        spoil(folder, 0, 1)
        with pytest.raises(RuntimeError) as caught:  # noqa: PT012
            decode.load_image(str(folder / "0.png"), skip)
            decode.load_image(path, skip)
        assert "\n" not in str(caught.value)
    with pytest.raises(RuntimeError) as caught:
        decode.load_image(path)
    assert str(caught.value).startswith(f"cannot decode {folder}/\\xff\\x0a.png: ")


def test_ascii_terminal_shows_any_name(folder):
    """B18: LC_ALL=C, without Python's own way out of it."""
    names = [b"\xff.png", "é.png".encode()]
    for name in names:
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(b"no image")
    code = (
        "import os, sys; from patches.support import decode\n"
        "paths = [os.path.join(sys.argv[1], os.fsdecode(name)) for name in NAMES]\n"
        "for path in paths: decode.load_image(path, 2)\n"
        "print(decode.shown(path).isprintable()); decode.load_image(path)\n"
    ).replace("NAMES", repr(names))
    env = {
        **os.environ,
        "PYTHONPATH": str(REPO),
        "LC_ALL": "C",
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
    }
    done = subprocess.run([sys.executable, "-c", code, folder], env=env, capture_output=True)
    assert done.stdout == b"True\n", done.stderr
    lines = done.stderr.decode("ascii").splitlines()
    assert [
        line for line in lines[:2] if ": skipped " in line and line.endswith(" of at most 2)")
    ] == lines[:2]
    assert "/\\xff.png: " in lines[0] and "/\\xe9.png: " in lines[1]
    assert lines[-1].startswith(f"RuntimeError: cannot decode {folder}/\\xe9.png: ")
    listed = (folder.parent / LIST).read_bytes()
    assert b"/\xff.png\t" in listed and "/é.png\t".encode() in listed
