"""Profile keys of stages that turn codes into sound."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from omni_cli.config.bounds import MAX_TOKENS
from omni_cli.config.schema import DiffusionStageConfig
from omni_cli.config.stage_keys import VLLM_ONLY, StrictKeys

Codes = Annotated[int, Field(ge=1, le=MAX_TOKENS)]


def growing_chunks(first: int, most: int) -> tuple[int, ...]:
    """Return the frames of a stream's chunks: of the first, of the next ones, and of all that follow.

    The first is heard as soon as its frames are made. Each other one must be there when those before it have been
    played: with r seconds of work for a second of sound, r * (frames to its end - first) <= frames before it. With
    1, 2, 4, 12, 12, ... that holds up to r = 0.39; at 0.3 the second chunk has 0.4 frames to spare, by which it may be
    decoded later than the first was, and each further one has more. Chunks stop doubling before half of `most`, because
    a GPU has graphs of its own for each size.
    """
    sizes = [first]
    while 4 * sizes[-1] <= most:
        sizes.append(2 * sizes[-1])
    return (*sizes, most)


class WaveformKeys(StrictKeys):
    """Keys of the stage of a chain that makes sound."""

    stream: Annotated[bool | None, VLLM_ONLY] = Field(
        None,
        description="Send audio in chunks as it is made, and begin while the stage before it still runs; "
        "that of the stage which makes audio, for requests that do not say it themselves.",
    )

    @property
    def streams(self) -> bool:
        return bool(self.stream)


class WaveformConfig(WaveformKeys, DiffusionStageConfig):
    """Keys of the last stage of a chain that speaks."""


class CodecConfig(WaveformConfig):
    """Keys of a stage that decodes frames of codes, in pieces of any size with the same samples."""

    stream_first_chunk_frames: Annotated[Codes, VLLM_ONLY] = Field(
        1, description="Frames of codes in the first chunk of streamed audio."
    )
    stream_chunk_frames: Annotated[Codes, VLLM_ONLY] = Field(
        12, description="Frames of codes in a later chunk of streamed audio; those before it double up to half of it."
    )

    @property
    def chunk_sizes(self) -> tuple[int, ...]:
        """Return the frames of a stream's chunks, as `growing_chunks`."""
        return growing_chunks(self.stream_first_chunk_frames, self.stream_chunk_frames)
