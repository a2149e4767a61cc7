"""Which JPEG files are decoded fast, and that as much of them is decoded as is needed."""

import io
import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")
import numpy as np  # noqa: E402
from photos import DECODERS, encoded, photo, use  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision.transforms import InterpolationMode  # noqa: E402

from patches.support import jpeg  # noqa: E402

BILINEAR = InterpolationMode.BILINEAR
PLAIN = {
    "colour": {},
    "every colour of every pixel": {"subsampling": 0},
    "progressive": {"progressive": True},
    "EXIF that says turned": {"exif": Image.Exif()},
    "a comment, a profile": {"comment": b"of \xff\xd9 and \xff\xc2", "icc_profile": b"Adobe RGB"},
    "restarts": {"restart_marker_rows": 1},
}
PLAIN["EXIF that says turned"]["exif"][0x0112] = 6


def grey(image: Image.Image) -> Image.Image:
    return image.convert("L")


def reference(image, box, size, filter=Image.Resampling.BILINEAR) -> np.ndarray:
    """The box as Pillow crops and resizes it, as upstream does: (height, width, 3)."""
    top, left, height, width = box
    cropped = image.convert("RGB").crop((left, top, left + width, top + height))
    return np.asarray(cropped.resize((size[1], size[0]), filter)).astype(int)


def distance(pixels: torch.Tensor, expected: np.ndarray) -> np.ndarray:
    assert pixels.dtype == torch.uint8 and pixels.shape[:2] == (1, 3)
    return np.abs(pixels[0].permute(1, 2, 0).numpy().astype(int) - expected)


def decoded(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


# The header


@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("shape", [photo, grey])
def test_header_of_plain_files_is_read(options, shape):
    image = photo(0, 70, 45)
    data = encoded(shape(image) if shape is grey else image, **options)
    head = jpeg.header(data)
    assert (head.height, head.width, head.by_rows) == (45, 70, "progressive" not in options)
    assert data[head.at : head.at + 4] == b"\0\x2d\0\x46"
    assert jpeg.header(data + b"\n\0\0") == head  # some programs pad


def frame(data: bytes) -> int:
    """Where the length of a baseline frame stands."""
    return data.index(b"\xff\xc0") + 2


def changed(data: bytes, at: int, *values: int) -> bytes:
    return data[:at] + bytes(values) + data[at + len(values) :]


def odd_files() -> dict:
    image = photo(0, 70, 45)
    data = encoded(image)
    adobe = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0"
    return {
        "empty": b"",
        "two bytes": b"\xff\xd8",
        "markers alone": b"\xff\xd8\xff\xd9" + 40 * b"\xff",
        "text": b"no image " * 20,
        "PNG": encoded(image, "PNG"),
        "CMYK": encoded(image.convert("CMYK")),
        "RGB": encoded(image, keep_rgb=True),
        "Adobe's RGB": data[:2] + adobe + b"\0" + data[2:],
        "components R, G and B": changed(data, frame(data) + 8, *b"R\x22\0G\x11\1B"),
        "12 bits": changed(data, frame(data) + 2, 12),
        "no height": changed(data, frame(data) + 3, 0, 0),
        "no width": changed(data, frame(data) + 5, 0, 0),
        "lossless": changed(data, frame(data) - 1, 0xC3),
        "arithmetic": changed(data, frame(data) - 1, 0xC9),
        "two frames": data[: frame(data) - 2] + 2 * data[frame(data) - 2 : frame(data) + 17] + data[-400:],
        "no pixels": data[: frame(data) + 17] + b"\xff\xd9" + 20 * b"\0",
        "truncated": data[:-400],
    }  # fmt: skip


@pytest.mark.parametrize("name", odd_files())
def test_any_other_file_has_no_header_here(name):
    assert jpeg.header(odd_files()[name]) is None


def test_the_odd_files_were_plain_before_they_were_changed():
    data = encoded(photo(0, 70, 45))
    adobe = b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0\1"
    assert jpeg.header(data[:2] + adobe + data[2:])  # YCbCr, as Photoshop writes it
    assert jpeg.header(changed(data, frame(data) - 1, 0xC1))


def test_image_of_which_pillow_would_warn_is_left_to_pillow(monkeypatch):
    data = encoded(photo(0, 70, 45))
    for limit, fast in ((70 * 45, True), (70 * 45 - 1, False), (None, True)):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert (jpeg.header(data) is not None) == fast


def test_no_bytes_make_the_header_fail():
    data = encoded(photo(0, 70, 45))
    for end in range(len(data) - 64):
        assert jpeg.header(data[:end]) is None
    draw = random.Random(0)
    for _ in range(3000):
        spoiled = bytearray(data)
        for _ in range(draw.randrange(1, 5)):
            spoiled[draw.randrange(700)] = draw.choice(
                [0, 1, 0xC0, 0xEE, 0xFF, draw.randrange(256)]
            )
        jpeg.header(bytes(spoiled))


# Pixels


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("shape", [photo, grey])
def test_box_of_a_file_is_what_pillow_makes_of_it(monkeypatch, decoder, options, shape):
    """To one step of 255: two ways to round. No row is left out too many."""
    use(decoder, monkeypatch)
    image = photo(0, 330, 219)
    data = encoded(shape(image) if shape is grey else image, **options)
    head = jpeg.header(data)
    for box in [(0, 0, 219, 330), (0, 3, 91, 120), (17, 31, 100, 77), (118, 229, 101, 101)]:
        for size in ((96, 96), (130, 60)):
            expected = reference(decoded(data), box, size)
            pixels = jpeg.resized(data, head, box, size, BILINEAR, spare=9)
            found = distance(pixels, expected)
            assert pixels.shape == (1, 3, *size)
            assert found.max() <= 1 and found.mean() < 0.2, (box, size)


def test_filter_is_that_of_the_transform():
    image = photo(0, 330, 219)
    data, box = encoded(image), (17, 31, 150, 177)
    for mode, filter in jpeg.FILTERS.values():
        key = InterpolationMode(mode)
        pixels = jpeg.resized(data, jpeg.header(data), box, (96, 96), key)
        assert distance(pixels, reference(decoded(data), box, (96, 96), filter)).mean() < 0.3
    box = (17, 31, 180, 200)
    both = [jpeg.resized(data, jpeg.header(data), box, (60, 60), m) for m in jpeg.FILTERS]
    assert not torch.equal(*both)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("shape", [photo, grey])
@pytest.mark.parametrize("size", [64, 32, 16])
@pytest.mark.parametrize("number", [0, 1])
def test_box_that_is_decoded_at_a_scale_is_near(monkeypatch, decoder, size, shape, number):
    """At a half, a quarter and an eighth, where nothing else is asked for: to 5 of 255.

    A box that is one pixel of the result aside differs by 8 and more.
    """
    use(decoder, monkeypatch)
    image = photo(number, 333, 219)
    data = encoded(shape(image) if shape is grey else image)
    for box in ((16, 32, 144, 136), (15, 31, 140, 130)):
        taken = box
        if decoder != "torchvision":  # Pillow's boxes need no whole pixels
            taken = [round(side * size / 128) * 128 // size for side in box]
        pixels = jpeg.resized(data, jpeg.header(data), box, (size, size), BILINEAR)
        expected = reference(decoded(data), taken, (size, size))
        assert 0 < distance(pixels, expected).mean() < 5
        for axis in (0, 1):
            for step in (-1, 1):
                moved = np.roll(expected, step, axis)
                assert distance(pixels, moved).mean() > 2 * distance(pixels, expected).mean()
        exact = jpeg.resized(data, jpeg.header(data), box, (size, size), BILINEAR, spare=9)
        assert distance(exact, reference(decoded(data), box, (size, size))).max() <= 1


@pytest.mark.parametrize("spare, sizes", [(1, (1, 2, 4, 8, 8)), (2, (1, 1, 2, 4, 8))])
def test_scale_leaves_enough_pixels(monkeypatch, spare, sizes):
    """At least `spare` times as many as asked for, in both directions."""
    seen = []
    monkeypatch.setattr(jpeg, "simplejpeg", object())
    monkeypatch.setattr(jpeg, "by_simplejpeg", lambda data, scale, *rest: seen.append(scale))
    head = jpeg.Header(1000, 2000, 20, False)
    for size, expected in zip((200, 160, 80, 40, 20), sizes):
        for box, target in [((0, 0, 320, 900), (size, 2)), ((0, 0, 900, 320), (2, size))]:
            jpeg.resized(b"", head, box, target, BILINEAR, spare)
            assert seen.pop() == expected, (box, size)
    jpeg.resized(b"", head, (0, 0, 319, 900), (160, 160), BILINEAR)
    assert seen == [1]


def test_rows_below_the_box_are_not_decoded(monkeypatch):
    simplejpeg = use("stand-in", monkeypatch)
    image = photo(0, 330, 219)
    for options, rows in (({}, [132, 219]), ({"progressive": True}, [219, 219])):
        data = encoded(image, **options)
        for box in ((40, 0, 60, 60), (128, 0, 60, 60)):
            jpeg.resized(data, jpeg.header(data), box, (96, 96), BILINEAR)
        assert simplejpeg.rows == rows
        simplejpeg.rows.clear()


def test_decoder_that_gives_another_size_is_not_believed(monkeypatch):
    data = encoded(photo(0, 330, 219))
    wrong = jpeg.header(data)._replace(width=320)
    for decoder, size in (("stand-in", 96), ("torchvision", 40)):
        use(decoder, monkeypatch)
        with pytest.raises(ValueError, match=r"decoded .*, expected"):
            jpeg.resized(data, wrong, (0, 0, 200, 200), (size, size), BILINEAR)
