"""`support.weight_files`: what is in a file of weights, and what a model calls it."""

import json
import struct
from collections import OrderedDict
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import numpy  # noqa: E402
from torchvision import models  # noqa: E402

from patches.support import weight_files  # noqa: E402


def written(tensors, path, **metadata):
    """Write a safetensors file, as the page of the format has it: sizes, header, bytes."""
    header, data = {"__metadata__": metadata} if metadata else {}, b""
    for name, (kind, shape, raw) in tensors.items():
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": offsets}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_tensors_of_every_type_are_read(tmp_path):
    path = str(tmp_path / "a.safetensors")
    numbers = [[1, 2, 3], [4, 5, 6]]
    kinds = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2"}
    kinds |= {"I8": "i1", "U8": "u1", "BOOL": "?"}
    held = {
        kind: (kind, [2, 3], numpy.array(numbers, as_).tobytes()) for kind, as_ in kinds.items()
    }
    top = [number.tobytes()[2:] for number in numpy.array(numbers, "<f4").flat]  # of 4 bytes
    held |= {"BF16": ("BF16", [2, 3], b"".join(top)), "none": ("F32", [0, 3], b"")}
    held["one"] = ("F32", [], struct.pack("<f", 0.5))
    written(held, path, format="pt")
    found = weight_files.read(path, trusted=False)
    assert list(found) == list(held)
    assert (found["none"].shape, found["one"].item()) == ((0, 3), 0.5)
    assert found["BOOL"].tolist() == [[True] * 3] * 2
    for kind in {*kinds, "BF16"} - {"BOOL"}:
        assert found[kind].tolist() == numbers
    assert (found["BF16"].dtype, found["F16"].dtype) == (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("left", [0, 5, 40, -1])
def test_a_safetensors_file_that_was_cut_is_refused(left, tmp_path):
    path = tmp_path / "a.safetensors"
    written({"w": ("F32", [2, 2], bytes(16))}, path)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(ValueError, match=r"^not a whole safetensors file: "):
        weight_files.read(str(path), trusted=False)


@pytest.mark.parametrize(
    "held", [("F8_E5M2", [2], bytes(2)), ("F32", [3], bytes(8)), ("F32", "x", bytes(8))]
)
def test_a_tensor_that_cannot_be_is_refused(held, tmp_path):
    path = tmp_path / "a.safetensors"
    written({"w": held}, path)
    with pytest.raises(ValueError, match=r"^not a whole safetensors file: "):
        weight_files.read(str(path), trusted=False)


@pytest.mark.parametrize("old", [False, True], ids=["zip", "legacy"])
def test_what_torch_has_saved_is_read(old, tmp_path):
    path = str(tmp_path / "a.pth")
    torch.save({"w": torch.ones(2)}, path, _use_new_zipfile_serialization=not old)
    assert weight_files.read(path, trusted=False)["w"].tolist() == [1, 1]


def test_code_in_a_file_is_not_run(tmp_path):
    path = str(tmp_path / "a.pth")
    torch.save({"args": Path("x")}, path)
    with pytest.raises(ValueError, match=r"which may run code .* add --trust-checkpoint$"):
        weight_files.read(path, trusted=False)
    assert weight_files.read(path, trusted=True) == {"args": Path("x")}


def test_a_file_of_something_else_is_refused(tmp_path):
    path = str(tmp_path / "a.pth")
    torch.save(torch.ones(2), path)
    with pytest.raises(ValueError, match=r"^it holds a Tensor, not weights by name$"):
        weight_files.read(path, trusted=False)
    with pytest.raises(FileNotFoundError):
        weight_files.read(str(tmp_path / "b.pth"), trusted=False)


# Names


def old_names(name: str) -> str:
    """As torchvision's published files still have them: ViT before 0.14, DenseNet before 0.2."""
    if "encoder_layer" in name:
        name = name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2.")
    if "denselayer" in name:
        for kind in ("norm", "conv"):
            for number in "12":
                name = name.replace(f"{kind}{number}", f"{kind}.{number}")
    return name


@pytest.mark.parametrize("arch", ["densenet121", "vit_b_32"])
@pytest.mark.parametrize("prefix", ["", "module.", "module._orig_mod."])
def test_old_names_of_torchvision_are_those_of_the_model(arch, prefix):
    with torch.device("meta"):
        own = models.get_model(arch).state_dict()
    old = OrderedDict((prefix + old_names(name), value) for name, value in own.items())
    assert old.keys() != own.keys()
    assert weight_files.renamed(old, own).keys() == own.keys()


def test_names_that_a_model_has_stay_as_they_are():
    """Swin's last layers are called norm and head, as those of timm's ViT."""
    for arch in ("swin_t", "resnet18", "vit_b_32"):
        own = models.get_model(arch).state_dict()
        found = weight_files.renamed(own, own)
        assert list(found) == list(own)
        assert all(found[name] is own[name] for name in own)
