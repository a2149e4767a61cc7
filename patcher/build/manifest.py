"""The manifest: from what a build was made, and what it has to be.

No timestamps, so two builds from the same inputs are the same bytes.  It is read on every run, and
tells from checksums alone whether there is anything to do: keep this module light.  The LibCST version
in it is a record, not an input: another LibCST is no reason to render again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from patcher.build.project import Project, Request
from patcher.core.problem import Problem

MANIFEST = "manifest.json"
UNDO = ".patcher-undo"  # while this folder exists, what lies in it is the true state of the build


def serialise(data: dict) -> bytes:
    """Canonical JSON whose last entry is the sha256 of the rest, so that no byte of it can change unseen."""
    digest = sha256(json.dumps(data).encode())
    return json.dumps({**data, "sha256": digest}, indent=1).encode() + b"\n"


def read(out: Path) -> dict | None:
    """The manifest of a build; None where there is none.  Raises Problem where it is not as it was written."""
    path = out / MANIFEST
    if not path.exists():
        return None
    source = path.read_bytes() if path.is_file() else b""  # a pipe would never end
    try:
        data = json.loads(source)
        whole = serialise({key: value for key, value in data.items() if key != "sha256"}) == source
    except (ValueError, AttributeError):
        whole = False
    if not whole:
        raise Problem(
            "not as `apply` wrote it",
            file=f"{out.as_posix()}/{MANIFEST}",
            hint="Run `apply --overwrite` to write the build anew.",
        )
    return data


def request_of(manifest: dict) -> Request:
    return Request(manifest["series"], tuple(manifest["set"]))


def is_current(project: Project, request: Request, out: Path) -> bool:
    """Whether every input and every output is, by its checksum, the one that the manifest names.

    Never where a patch had no hit: an obsolete patch is to be named again and again, until it is deleted.
    """
    manifest = read(out)
    if manifest is None or request_of(manifest) != request or (out / UNDO).exists():
        return False
    if not all(hits for patch in manifest["patches"] for hits in patch["hits"].values()):
        return False
    return manifest["inputs"] == project.inputs() and manifest["outputs"] == {
        n: file_sha256(out / n) for n in manifest["outputs"]
    }


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def file_sha256(path: Path) -> str | None:
    """The sha256 of a file; None where it is none, or cannot be read."""
    try:
        return sha256(path.read_bytes()) if path.is_file() else None  # a pipe would never end
    except OSError:
        return None
