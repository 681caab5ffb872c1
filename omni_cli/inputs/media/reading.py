"""Read media, decoded by another process: from a file that the user names, or from content of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from omni_cli.errors import InputError
from omni_cli.inputs.files import open_input
from omni_cli.inputs.media.audio import MAX_AUDIO_S
from omni_cli.inputs.media.images import MAX_IMAGE_PIXELS
from omni_cli.inputs.media.pool import Requester, media_pool
from omni_cli.inputs.media.video import MAX_VIDEO_PIXELS, MAX_VIDEO_S
from omni_cli.inputs.media.wire import AudioJob, Decoded, ImageJob, Job, VideoJob
from omni_cli.outputs import Video

if TYPE_CHECKING:
    import numpy as np

Warn = Callable[[str], None]
Chosen = tuple[Sequence[int], Mapping[str, Any]]
ChooseFrames = Callable[[int, float], Chosen]
"""Returns which frames a model sees, and vLLM's metadata on them, for the number and the rate of all."""
FIRST_FRAME: Chosen = (0,), {"frames_indices": (0,), "do_sample_frames": False}


class MediaReader:
    """Decodes media for one requester; `warn` is called with a sentence on everything that is changed or left out.

    `name` identifies a medium in messages. The methods block, and raise `InputError` for a medium that cannot be used
    or exceeds a limit.
    """

    def __init__(self, warn: Warn, requester: Requester | None = None) -> None:
        self._warn = warn
        self._requester = requester

    def image(self, content: BinaryIO, name: str, *, max_pixels: int = MAX_IMAGE_PIXELS) -> np.ndarray:
        """Decode to uint8 RGB (height, width, 3), turned by its EXIF orientation, with transparency put on white."""
        return self._required(ImageJob(name, max_pixels), content)[1]

    def alpha(self, content: BinaryIO, name: str, *, max_pixels: int = MAX_IMAGE_PIXELS) -> np.ndarray:
        """Decode the transparency of an image to uint8 (height, width): 0 is fully transparent."""
        return self._required(ImageJob(name, max_pixels, alpha=True), content)[1]

    def audio(
        self, content: BinaryIO, name: str, *, max_s: float = MAX_AUDIO_S, mono: bool = True
    ) -> tuple[np.ndarray, int]:
        """Decode to float32 (num_samples,), with `mono` False (num_samples, channels), and the sample rate in Hz."""
        header, samples = self._required(AudioJob(name, max_s, mono), content)
        return samples, int(header.rate)

    def sound(self, content: BinaryIO, name: str) -> tuple[np.ndarray, int] | None:
        """Decode the sound of a video, as `audio` with its channels; None if it has none."""
        decoded = self._decode(AudioJob(name, MAX_VIDEO_S, mono=False, of_video=True), content)
        return None if decoded is None else (decoded[1], int(decoded[0].rate))

    def video(
        self,
        content: BinaryIO,
        name: str,
        *,
        choose: ChooseFrames | None = None,
        max_pixels: int = MAX_VIDEO_PIXELS,
        **limits: Any,
    ) -> Video:
        """Decode the frames that `choose` returns, without it all; `limits` are further ones of `VideoJob`."""
        job = VideoJob(name, max_pixels, MAX_VIDEO_S, None if choose is None else (), **limits)
        header, frames = self._required(job, content)
        if choose is None:
            return Video(frames, header.rate, header.total_num_frames, header.frames_indices)
        # Where packets are hidden, or hold half a frame, decoding alone tells how many frames there are.
        for _ in range(2):
            total = header.total_num_frames
            answer = choose(total, header.rate) if total > 1 else FIRST_FRAME
            chosen, metadata = answer if answer[0] else FIRST_FRAME  # vLLM gives some models no frame of 0.1 s
            most = max_pixels // max(1, frames.shape[1] * frames.shape[2])
            if 1 < most < len(chosen):
                self._warn(f"of the {name} a limit of {max_pixels:,} pixels leaves {most} of {len(chosen)} frames")
                chosen = tuple(chosen[index * (len(chosen) - 1) // (most - 1)] for index in range(most))
                metadata = {**metadata, "frames_indices": chosen, "do_sample_frames": False}
            header, frames = self._required(msgspec.structs.replace(job, indices=tuple(chosen)), content)
            if header.total_num_frames == total:
                break
        else:
            raise InputError(f"cannot read the {name}: it has another number of frames each time")
        count, rate = len(chosen), len(chosen) * header.rate / total
        self._warn(f"the model sees {count} frame{'s' * (count > 1)} of the {name}, {rate:.3g} per second, of {total}")
        return Video(frames, header.rate, total, tuple(metadata["frames_indices"]), metadata["do_sample_frames"])

    def _required(self, job: Job, content: BinaryIO) -> tuple[Decoded, np.ndarray]:
        decoded = self._decode(job, content)
        assert decoded is not None
        return decoded

    def _decode(self, job: Job, content: BinaryIO) -> tuple[Decoded, np.ndarray] | None:
        decoded = media_pool().decode(job, content, self._requester)
        for note in () if decoded is None else decoded[0].notes:
            self._warn(note)
        return decoded


def load_image(path: Path, warn: Warn) -> np.ndarray:
    """Read an image file, as `MediaReader.image`."""
    with open_input(path, "image file") as file:
        return MediaReader(warn).image(file, f"image file `{path}`")


def load_audio(path: Path, warn: Warn, *, max_s: float = MAX_AUDIO_S, mono: bool = True) -> tuple[np.ndarray, int]:
    """Read an audio file, as `MediaReader.audio`."""
    with open_input(path, "audio file") as file:
        return MediaReader(warn).audio(file, f"audio file `{path}`", max_s=max_s, mono=mono)


def load_video(path: Path, warn: Warn, choose: ChooseFrames | None = None) -> Video:
    """Read a video file, as `MediaReader.video`."""
    with open_input(path, "video file") as file:
        return MediaReader(warn).video(file, f"video file `{path}`", choose=choose)


def load_sound(path: Path, warn: Warn) -> tuple[np.ndarray, int] | None:
    """Read the sound of a video file, as `MediaReader.sound`."""
    with open_input(path, "video file") as file:
        return MediaReader(warn).sound(file, f"video file `{path}`")
