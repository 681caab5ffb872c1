"""A request for speech as token2wav computes it, with the inputs that are constant during denoising."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from omni_cli.models.qwen2_5_omni.token2wav.velocity import Schedule


@dataclass(frozen=True)
class DenoisingSettings:
    """Settings of a request's denoising."""

    num_steps: int
    guidance_scale: float
    sway_coefficient: float

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.num_steps, self.sway_coefficient)

    @property
    def is_guided(self) -> bool:
        return self.guidance_scale >= 1e-5

    @property
    def num_rows(self) -> int:
        """Rows per request in the DiT's batch; guidance adds one without conditions."""
        return 2 if self.is_guided else 1

    def guided(self, predicted: torch.Tensor, unguided: torch.Tensor) -> torch.Tensor:
        return predicted + (predicted - unguided) * self.guidance_scale


@dataclass(frozen=True)
class Carried:
    """A chunk's part for the next one of its stream, whose codes start at `end`.

    `keys_values` (evaluations, layers that look back, rows, block_size, 2, heads, head_dim) are those of the block
    before it, and `mel` (1, num_frames, mel_dim) is the spectrogram up to it.
    """

    end: int
    keys_values: torch.Tensor
    mel: torch.Tensor


@dataclass(frozen=True)
class SynthesisRequest:
    """A request for audio of codes [start, end); `codes` (num_codes,) int64 on the device begin at `codes_start`.

    A chunk of a `stream` needs what the chunk before it has `carried` on; the codes of the next one start at
    `continues_at`. `drawn` is its noise, if that was drawn ahead.
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
    carried: Carried | None = None
    drawn: torch.Tensor | None = None

    @classmethod
    def of(cls, request_id: str, token_ids: torch.Tensor, information: Mapping[str, Any]) -> SynthesisRequest:
        """Create it from a request of the engine; all of its codes unless its `information` has a chunk."""
        codes_start, start, end = information.get("chunk", (0, 0, len(token_ids)))
        return cls(
            request_id,
            # The runner's buffer is used again in the next step.
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
        """Return (1, num_frames, mel_dim) on the host.

        It is drawn there, so that a seed gives the same audio on every device, streamed or whole. The first rows do not
        depend on the number of rows, so those of a chunk are rows of the whole's.
        """
        if self.drawn is not None:
            return self.drawn
        first, num_frames = self.codes_start * repeats, len(self.codes) * repeats
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randn((1, first + num_frames, mel_dim), generator=generator)[:, first:]


class Conditioner:
    """Makes the conditions of requests. The speaker encoder depends on the reference only and runs once per speaker."""

    def __init__(self, dit: nn.Module, speakers: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        self._dit = dit
        self._speakers = speakers
        self._encodings: dict[tuple[str, int], torch.Tensor] = {}
        self._vectors: dict[str, torch.Tensor] = {}

    def conditions(self, requests: Sequence[SynthesisRequest]) -> torch.Tensor:
        """Return (rows, num_frames, condition_dim) of requests with the same settings, one after another.

        The parts of `condition_dim` are in the order of the DiT's input projection.
        """
        dit, num_rows = self._dit, requests[0].sampling.num_rows
        codes = torch.cat([each.codes for each in requests])[None]
        embedded = torch.cat([dit.text_embed(codes), dit.text_embed(codes, drop_code=True)][:num_rows])
        lengths = torch.tensor([len(each.codes) * dit.repeats for each in requests])
        of_frame = torch.arange(len(requests)).repeat_interleave(lengths).to(embedded.device)
        vectors = torch.stack([self._vector(each.speaker) for each in requests], dim=1)
        vectors = torch.cat([vectors, torch.zeros_like(vectors)][:num_rows])
        encodings = torch.stack([self._encoding(each.speaker, num_rows) for each in requests], dim=1)
        return torch.cat((encodings[:, of_frame], embedded, vectors[:, of_frame]), dim=-1)

    def _vector(self, speaker: str) -> torch.Tensor:
        if speaker not in self._vectors:
            self._vectors[speaker] = self._speakers[speaker]["cond"].to(self._dit.device).float()
        return self._vectors[speaker]

    def _encoding(self, speaker: str, num_rows: int) -> torch.Tensor:
        """(num_rows, enc_dim)."""
        key = (speaker, num_rows)
        if key not in self._encodings:
            mel = self._speakers[speaker]["ref_mel"].to(self._dit.device).float()
            self._encodings[key] = self._dit.input_embed.spk_encoder(torch.cat([mel, torch.zeros_like(mel)][:num_rows]))
        return self._encodings[key]
