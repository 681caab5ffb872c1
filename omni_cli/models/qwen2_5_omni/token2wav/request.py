"""A request for speech as token2wav computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class DenoisingSettings:
    """Settings of a request's denoising."""

    num_steps: int
    guidance_scale: float
    sway_coefficient: float

    @property
    def num_rows(self) -> int:
        """Rows per request in the DiT's batch; guidance adds one without conditions."""
        return 2 if self.guidance_scale >= 1e-5 else 1

    def times(self, device: torch.device) -> torch.Tensor:
        """Return the times of the steps (num_steps,) float32, with the arithmetic of the DiT's own `sample`."""
        times = torch.linspace(0, 1, self.num_steps, device=device)
        return times + self.sway_coefficient * (torch.cos(torch.pi / 2 * times) - 1 + times)


@dataclass(frozen=True)
class ChunkState:
    """A chunk's part that the next one of its stream, whose codes start at `end`, continues from.

    `keys_values` (evaluations, layers that look back, rows, block_size, 2, heads, head_dim) are those of the block
    before it, and `mel` (1, num_frames, mel_dim) is the spectrogram up to it.
    """

    end: int
    keys_values: torch.Tensor
    mel: torch.Tensor


@dataclass(frozen=True)
class SynthesisRequest:
    """A request for audio of codes [start, end); `codes` (num_codes,) int64 on the device begin at `codes_start`.

    A chunk of a `stream` continues from `previous`, the state of the chunk before it. The codes of the next chunk start
    at `continues_at`. `drawn_noise` is the request's noise, if that was drawn ahead.
    """

    request_id: str
    codes: torch.Tensor
    codes_start: int
    start: int
    end: int
    seed: int
    speaker: str
    sampling: DenoisingSettings
    stream: str | None = None
    continues_at: int | None = None
    previous: ChunkState | None = None
    drawn_noise: torch.Tensor | None = None

    @classmethod
    def from_engine(cls, request_id: str, token_ids: torch.Tensor, information: Mapping[str, Any]) -> SynthesisRequest:
        """Create it from a request of the engine; for all of its codes unless its `information` has a chunk."""
        codes_start, start, end = information.get("chunk", (0, 0, len(token_ids)))
        return cls(
            request_id,
            # The runner reuses its buffer in the next step.
            token_ids.to(torch.long, copy=True),
            codes_start=codes_start,
            start=start,
            end=end,
            seed=int(information["seed"][0]),
            speaker=information["speaker"][0],
            sampling=DenoisingSettings(
                int(information["num_inference_steps"][0]),
                float(information["guidance_scale"][0]),
                float(information["sway_coefficient"][0]),
            ),
            stream=information.get("stream", (None,))[0],
            continues_at=information.get("continues_at", (None,))[0],
        )

    def noise(self, repeats: int, mel_dim: int) -> torch.Tensor:
        """Return (1, num_frames, mel_dim) on the host, for `repeats` frames per code.

        It is drawn on the host, so that a seed gives the same audio on every device, streamed or whole. The first rows
        do not depend on the number of rows, so the noise of a chunk is a part of the noise of all codes.
        """
        if self.drawn_noise is not None:
            return self.drawn_noise
        first, num_frames = self.codes_start * repeats, len(self.codes) * repeats
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn((1, first + num_frames, mel_dim), generator=generator)[:, first:]
