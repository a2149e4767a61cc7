"""Photographs for tests of images, and a stand-in for the extra simplejpeg."""

import functools
import importlib.util
import io

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_images

# What the decoder of `patches.support.jpeg` may be. CI has no simplejpeg.
DECODERS = ["torchvision", "stand-in"]
DECODERS += ["simplejpeg"] if importlib.util.find_spec("simplejpeg") else []


@functools.cache
def photo(number: int, width: int, height: int) -> Image.Image:
    """One of two photographs, cropped and scaled to that size."""
    image = Image.fromarray(load_sample_images().images[number])
    scale = min(image.width / width, image.height / height)
    size = max(1, int(scale * width)), max(1, int(scale * height))
    left, top = (image.width - size[0]) // 2, (image.height - size[1]) // 2
    box = (left, top, left + size[0], top + size[1])
    return image.resize((width, height), Image.Resampling.BICUBIC, box=box)


def encoded(image: Image.Image, kind: str = "JPEG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": 90} if kind == "JPEG" else {}) | options)
    return buffer.getvalue()


class StandIn:
    """Decodes as simplejpeg does, by Pillow, at the smallest scale that is large enough.

    `rows` has the height that each file claimed to have.
    """

    def __init__(self):
        self.rows: list[int] = []

    def decode_jpeg(self, data, colorspace, min_height, min_width, strict):
        assert colorspace == "RGB" and not strict
        image = Image.open(io.BytesIO(data))
        self.rows.append(image.height)
        for scale in (8, 4, 2):
            if -(-image.height // scale) >= min_height and -(-image.width // scale) >= min_width:
                image.draft(image.mode, (image.width // scale, image.height // scale))
                break
        return np.array(image.convert("RGB"))


def use(decoder: str, monkeypatch):
    """Let `patches.support.jpeg` have one of DECODERS; the module that it has in place of simplejpeg."""
    from patches.support import jpeg

    own = importlib.import_module("simplejpeg") if decoder == "simplejpeg" else None
    module = StandIn() if decoder == "stand-in" else own
    monkeypatch.setattr(jpeg, "simplejpeg", module)
    return module
