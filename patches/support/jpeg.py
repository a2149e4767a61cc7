"""JPEG files: what their header says, and no more of them decoded than is needed."""

import importlib
import io
import struct
from typing import Any, NamedTuple

import torch
import torchvision.io  # noqa: F401  (it registers torch.ops.image)
from PIL import Image
from torchvision import transforms

try:
    simplejpeg: Any = importlib.import_module("simplejpeg")
except ImportError:
    simplejpeg = None

# Filters as torch and Pillow name them. Both are as wide as the pixels shrink.
FILTERS = {
    transforms.InterpolationMode.BILINEAR: ("bilinear", Image.Resampling.BILINEAR),
    transforms.InterpolationMode.BICUBIC: ("bicubic", Image.Resampling.BICUBIC),
}
SEGMENT = struct.Struct(">BBH")  # 0xFF, its kind, its length
FRAME = struct.Struct(">BHHB")  # bits, height, width, number of components
# Kinds of tables, comments and applications: they say nothing of how pixels are coded.
OTHERS = {0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0)}
# Colours have fewer rows, and are filtered over neighbours: rows so far below do not show.
MARGIN = 32


class Header(NamedTuple):
    """Size in pixels, where in the file the height stands, and whether pixels come row by row."""

    height: int
    width: int
    at: int
    by_rows: bool


def header(data: bytes) -> "Header | None":
    """The header of a whole and plain JPEG: 8 bits, grey or YCbCr.

    None for everything else, which is left to Pillow: other formats, RGB, CMYK, 12 bits, lossless
    and arithmetic coding, truncated files, and images so large that Pillow warns of them.
    """
    if data[:2] != b"\xff\xd8" or data.rfind(b"\xff\xd9", -64) < 0:
        return None
    at, found = 2, None
    while at + 20 < len(data):
        first, kind, length = SEGMENT.unpack_from(data, at)
        if first != 0xFF:
            return None
        if kind == 0xDA:  # the pixels begin
            return found
        if kind in (0xC0, 0xC1, 0xC2):
            bits, height, width, count = FRAME.unpack_from(data, at + 4)
            plain = count == 1 or data[at + 10 : at + 10 + 3 * count : 3] == b"\1\2\3"
            usual = 0 < height * width <= (Image.MAX_IMAGE_PIXELS or float("inf"))
            if found or bits != 8 or not (plain and usual):
                return None
            found = Header(height, width, at + 5, kind != 0xC2)
        elif kind == 0xEE and data[at + 4 : at + 9] == b"Adobe" and data[at + 15] != 1:
            return None  # no YCbCr
        elif kind not in OTHERS:
            return None
        at += 2 + length
    return None


def resized(data: bytes, head: Header, box, size, mode, spare: int = 1) -> torch.Tensor:
    """The `box` of a JPEG, (top, left, height, width), at `size`, (height, width).

    uint8 of shape (1, 3, height, width), channels last. The file is decoded at 1/2, 1/4 or 1/8 if
    there the box still has `spare` times as many pixels as `size` in both directions. `mode` is a
    key of FILTERS. Raises any error if it cannot be decoded so.
    """
    top, _, height, width = box
    scale = 1
    while scale < 8 and min(height / size[0], width / size[1]) >= 2 * scale * spare:
        scale *= 2
    if simplejpeg is None and scale == 1:
        # torchvision's function for it warns that it will go one day.
        pixels = torch.ops.image.decode_jpeg(
            torch.frombuffer(bytearray(data), dtype=torch.uint8), 3
        )
        return interpolated(pixels.permute(1, 2, 0), box, size, mode)
    rows = min(head.height, top + height + MARGIN) if head.by_rows else head.height
    if rows < head.height:  # a header that says so makes the decoder stop there
        data = data[: head.at] + rows.to_bytes(2, "big") + data[head.at + 2 :]
    expected = (-(-rows // scale), -(-head.width // scale))
    decode = by_pillow if simplejpeg is None else by_simplejpeg
    return decode(data, scale, expected, box, size, mode)


def by_simplejpeg(data: bytes, scale: int, expected, box, size, mode) -> torch.Tensor:
    """As `resized`, decoded at 1/`scale` to the `expected` size. The box is that of whole pixels
    next to it: its edges are moved by half a pixel of the result at most.
    """
    # Strict, it would raise for rows that are left out, and for what Pillow does not mind either.
    height, width = expected
    array = simplejpeg.decode_jpeg(data, "RGB", min_height=height, min_width=width, strict=False)
    if array.shape[:2] != expected:
        raise ValueError(f"decoded {array.shape[:2]}, expected {expected}")
    nearest = [round(side / scale) for side in box]
    return interpolated(torch.from_numpy(array), nearest, size, mode)


def by_pillow(data: bytes, scale: int, expected, box, size, mode) -> torch.Tensor:
    """As `by_simplejpeg`, but Pillow takes boxes between pixels."""
    image: Image.Image = Image.open(io.BytesIO(data))
    image.draft(image.mode, (image.width // scale, image.height // scale))
    if (image.height, image.width) != expected:
        raise ValueError(f"decoded {(image.height, image.width)}, expected {expected}")
    top, left, height, width = (side / scale for side in box)
    edges = (left, top, min(left + width, image.width), min(top + height, image.height))
    image = image.resize((size[1], size[0]), FILTERS[mode][1], box=edges)
    pixels: torch.Tensor = transforms.functional.pil_to_tensor(image.convert("RGB"))
    return pixels[None]


def interpolated(pixels: torch.Tensor, box, size, mode, spare: int = 1) -> torch.Tensor:
    """As `resized`, of uint8 pixels (height, width, 3) that are there already.

    torch is twice as fast if the pixels of the box lie next to each other, channels last.
    """
    top, left, height, width = box
    dense = pixels[top : top + height, left : left + width].contiguous()[None].permute(0, 3, 1, 2)
    interpolate: Any = torch.nn.functional.interpolate
    made: torch.Tensor = interpolate(dense, list(size), mode=FILTERS[mode][0], antialias=True)
    return made
