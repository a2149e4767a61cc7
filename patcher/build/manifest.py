"""The manifest: what a build was made from, and what it has to be.

No timestamps, so two builds from the same inputs are the same bytes.  It is read on every run, and
tells from checksums alone whether there is anything to do: keep this module light.  The version of
LibCST in it is a record, not an input: another LibCST is no reason to render again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from patcher.build.project import Project, Request
from patcher.core.problem import Problem

TYPE_CHECKING = False  # `typing` costs a run that has nothing to do more than its own work
if TYPE_CHECKING:
    from typing import Any

MANIFEST = "manifest.json"
UNDO = ".patcher-undo"  # while this folder exists, it holds the true state of the build


def serialise(data: dict[str, Any]) -> bytes:
    """Canonical JSON.  Its last entry is the sha256 of the rest: no byte can change unseen."""
    digest = sha256(json.dumps(data).encode())
    return json.dumps({**data, "sha256": digest}, indent=1).encode() + b"\n"


def read(out: Path) -> dict[str, Any] | None:
    """The manifest of a build; None if there is none.  Raises Problem if it was changed."""
    path = out / MANIFEST
    if not path.exists():
        return None
    source = path.read_bytes() if path.is_file() else b""  # a pipe would never end
    try:
        data: dict[str, Any] = json.loads(source)
        if serialise({key: value for key, value in data.items() if key != "sha256"}) == source:
            return data
    except (ValueError, AttributeError):
        pass
    hint = "Run `apply --overwrite` to write the build again."
    raise Problem("not as `apply` wrote it", file=path.as_posix(), hint=hint)


def request_of(manifest: dict[str, Any]) -> Request:
    return Request(manifest["series"], tuple(manifest["set"]))


def is_current(project: Project, request: Request, out: Path) -> bool:
    """Whether every input and every output has the checksum that the manifest gives it.

    False if a patch had no hit: an obsolete patch is reported by every run until it is deleted.
    """
    manifest = read(out)
    if manifest is None or request_of(manifest) != request or (out / UNDO).exists():
        return False
    if not all(hits for patch in manifest["patches"] for hits in patch["hits"].values()):
        return False
    outputs: dict[str, str] = manifest["outputs"]
    is_same = manifest["inputs"] == project.inputs()
    return is_same and all(file_sha256(out / name) == outputs[name] for name in outputs)


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_sha256(path: Path) -> str | None:
    """The sha256 of a file; None if it is not a file, or cannot be read."""
    try:
        return sha256(path.read_bytes()) if path.is_file() else None  # a pipe would never end
    except OSError:
        return None
