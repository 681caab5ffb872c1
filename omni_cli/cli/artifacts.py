"""Write audio and images to the output folder, each file whole or not at all."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omni_cli.core.files import cannot_write, check_writable, write_whole
from omni_cli.report.generate_results import preview_path
from omni_cli.requests.encoding import encode_npy, encode_png, encode_wav
from omni_cli.requests.outputs import AudioOutput, ImageOutput, TensorOutput, VideoOutput

_MAX_STEM_LENGTH = 80
_SUFFIXES = (".wav", ".mp4", ".webp", ".npy", ".png")
# Windows opens a device for these names, in any folder and with any suffix.
_DEVICE_NAMES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def file_stems(request_ids: Iterable[str]) -> dict[str, str]:
    """Map each request id to a file stem: the id itself if that is a safe and unique name.

    Any other id (`../x`, `CON`, one that differs from another by case only) is made safe and gets a short hash, so that
    no id can escape the folder and no two share a file. The mapping is deterministic.
    """
    stems: dict[str, str] = {}
    taken: set[str] = set()
    for request_id in request_ids:
        stem = re.sub(r"[^A-Za-z0-9._-]", "_", request_id).lstrip(".-")[:_MAX_STEM_LENGTH].rstrip(".")
        if stem != request_id or not stem or _DEVICE_NAMES.fullmatch(stem) or stem.casefold() in taken:
            digest = hashlib.sha256(request_id.encode()).hexdigest()[:12]
            stem = f"{stem or 'request'}-{digest}"
        taken.add(stem.casefold())
        stems[request_id] = stem
    return stems


@contextmanager
def folder_if_used(folder: Path) -> Iterator[None]:
    """Create a folder and its parents, and remove at the end those that are empty. Raises `OSError`."""
    missing = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        with suppress(OSError):  # the first that is not empty
            for parent in missing:
                parent.rmdir()


class ArtifactWriter:
    """Writes outputs as `FOLDER/STEM.wav`, `.png` and `.mp4`; the second of a kind as `STEM.1.wav`.

    Beside `STEM.mp4` there is its preview, `STEM.preview.webp`. Unless it may `overwrite`, the names of a run that
    would meet an earlier one's have a number: `STEM-2.wav`.
    """

    def __init__(self, folder: Path, request_ids: Iterable[str], *, overwrite: bool = False) -> None:
        self.folder = folder
        self._stems = file_stems(request_ids)
        self._overwrite = overwrite
        self._number = 1
        self._counts: dict[tuple[str, str], int] = {}

    def prepare(self, *, continues: bool = False) -> str | None:
        """Check that files can be written, to fail before minutes of work; return a note if their names are new ones.

        A run that `continues` an earlier one uses its names where they are free. Raises `OutputError`.
        """
        try:
            with folder_if_used(self.folder):
                check_writable(self.folder)
                taken = {path.name for path in self.folder.iterdir() if path.suffix in _SUFFIXES}
        except (OSError, ValueError) as error:
            raise cannot_write(self.folder, error) from error
        begun = {self.folder / name[: dot.start()] for name in taken for dot in re.finditer(r"\.", name)}
        while not (self._overwrite or continues) and any(self._path(name, "") in begun for name in self._stems):
            self._number += 1
        if self._number == 1:
            return None
        names = f"names of this one end in -{self._number}"
        return f"{self.folder} has files of an earlier run, so {names}; `--overwrite` replaces them"

    def write(self, request_id: str, output: AudioOutput | ImageOutput | VideoOutput | TensorOutput) -> Path:
        """Encode and write one output; return its path. Raises `OutputError` if it cannot be written."""
        if isinstance(output, AudioOutput):
            suffix, content = "wav", encode_wav(output.samples, output.sample_rate)
        elif isinstance(output, VideoOutput):
            suffix, content = "mp4", output.content
        elif isinstance(output, TensorOutput):
            suffix, content = f"{output.name}.npy", encode_npy(output.array)
        else:
            suffix, content = "png", encode_png(output.pixels)
        number = self._counts.get((request_id, suffix), 0)
        self._counts[request_id, suffix] = number + 1
        suffix = f"{f'.{number}' if number else ''}.{suffix}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            while True:
                path = self._path(request_id, suffix)
                with suppress(FileExistsError):  # of a run that goes on at the same time
                    if isinstance(output, VideoOutput):
                        write_whole(preview_path(path), output.preview, replaces=self._overwrite)
                    write_whole(path, content, replaces=self._overwrite)
                    return path
                self._number += 1
        except OSError as error:
            raise cannot_write(self._path(request_id, suffix), error) from error

    def _path(self, request_id: str, suffix: str) -> Path:
        stem = self._stems.get(request_id) or file_stems([request_id])[request_id]
        return self.folder / f"{stem}{f'-{self._number}' if self._number > 1 else ''}{suffix}"
