"""Requests between noise and mel spectrogram, one denoising step at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from omni_cli.models.qwen2_5_omni.token2wav.request import ChunkState, SynthesisRequest
from omni_cli.models.qwen2_5_omni.token2wav.velocity import EVALUATIONS_PER_STEP, Layout, PackedVelocity, Velocity


class Conditioner:
    """Makes the conditions of requests. The speaker encoder depends on the reference only and runs once per speaker."""

    def __init__(self, dit: nn.Module, speakers: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        self._dit = dit
        self._speakers = speakers
        self._encodings: dict[tuple[str, int], torch.Tensor] = {}
        self._vectors = {name: speaker["cond"].to(dit.device).float() for name, speaker in speakers.items()}

    def conditions(self, requests: Sequence[SynthesisRequest]) -> torch.Tensor:
        """Return (rows, num_frames, condition_dim) of requests with the same settings, one after another.

        The parts of `condition_dim` are in the order of the DiT's input projection.
        """
        dit, num_rows = self._dit, requests[0].sampling.num_rows
        codes = torch.cat([request.codes for request in requests])[None]
        embedded = torch.cat([dit.text_embed(codes), dit.text_embed(codes, drop_code=True)][:num_rows])
        lengths = torch.tensor([len(request.codes) * dit.repeats for request in requests])
        request_of_frame = torch.arange(len(requests)).repeat_interleave(lengths).to(embedded.device)
        vectors = torch.stack([self._vectors[request.speaker] for request in requests], dim=1)
        vectors = torch.cat([vectors, torch.zeros_like(vectors)][:num_rows])
        encodings = torch.stack([self._get_encoding(request.speaker, num_rows) for request in requests], dim=1)
        return torch.cat((encodings[:, request_of_frame], embedded, vectors[:, request_of_frame]), dim=-1)

    def _get_encoding(self, speaker: str, num_rows: int) -> torch.Tensor:
        """Return (num_rows, enc_dim)."""
        key = (speaker, num_rows)
        if key not in self._encodings:
            mel = self._speakers[speaker]["ref_mel"].to(self._dit.device).float()
            self._encodings[key] = self._dit.input_embed.spk_encoder(torch.cat([mel, torch.zeros_like(mel)][:num_rows]))
        return self._encodings[key]


class Denoising:
    """Requests with the same settings, all at the same step, in one call of the DiT per evaluation.

    The frames of all requests are (num_frames, mel_dim), concatenated; in a call they are packed as `Layout` describes.
    `num_blocks_for` rounds a number of blocks up to one that there is a CUDA graph for. With `carries` all calls have
    the arguments of those with chunks of streams, so that they share graphs.
    """

    def __init__(
        self,
        velocity: Velocity,
        conditioner: Conditioner,
        requests: Sequence[SynthesisRequest],
        num_blocks_for: Callable[[int], int] = lambda num_used: num_used,
        *,
        carries: bool = False,
    ) -> None:
        dit = velocity.dit
        self._velocity, self._conditioner, self._num_blocks_for = velocity, conditioner, num_blocks_for
        self._carries = carries or any(request.stream is not None for request in requests)
        self._num_done = 0
        self._sampling = requests[0].sampling
        self._evaluations = velocity.evaluations(self._sampling, num_rows=self._sampling.num_rows)
        # The `ChunkState.keys_values` of requests whose stream continues, by id.
        self._kept: dict[str, list[torch.Tensor]] = {}
        noise = torch.cat([request.noise(dit.repeats, dit.mel_dim)[0] for request in requests])
        self._set_requests(list(requests), noise.to(dit.device))

    def _set_requests(self, requests: list[SynthesisRequest], frames: torch.Tensor) -> None:
        """Prepare what is the same in all further evaluations of `requests`, whose frames so far are `frames`."""
        dit, device, num_rows = self._velocity.dit, frames.device, self._sampling.num_rows
        self._requests, self._frames = requests, frames
        self._lengths = [len(request.codes) * dit.repeats for request in requests]
        lengths = self._lengths * num_rows
        layout = Layout.pack(lengths, self._velocity.block_size, num_blocks_for=self._num_blocks_for)
        # For each row, the locations of its frames among the packed ones.
        locations = torch.cat([torch.arange(start, start + length) for start, length in layout.spans])
        self._locations = locations.view(num_rows, -1).to(device)
        self._packed = frames.new_zeros(1, layout.num_frames, frames.shape[1])
        self._packed[0, self._locations] = frames
        # Velocities of the step so far.
        self._slopes = frames.new_empty(EVALUATIONS_PER_STEP - 1, *frames.shape)
        conditions = self._conditioner.conditions(requests)
        packed_conditions = conditions.new_zeros(1, layout.num_frames, conditions.shape[-1])
        packed_conditions[0, self._locations] = conditions
        firsts = [request.codes_start * dit.repeats for request in requests]
        positions = layout.positions(firsts * num_rows).to(device)[None]
        continued = self._set_chunks(layout, device) if self._carries else None
        self._inputs = self._velocity.constant_inputs(layout, packed_conditions, positions, continued)

    def _set_chunks(self, layout: Layout, device: torch.device) -> list[int]:
        """Prepare for the states of earlier chunks and for those of later ones; return the blocks that continue one."""
        size = layout.block_size
        blocks = [start // size for start, _ in layout.spans]
        sequences = list(zip(self._requests * self._sampling.num_rows, blocks, strict=True))
        continued = [block for request, block in sequences if request.previous is not None]
        self._continued = torch.tensor(continued, dtype=torch.long, device=device)
        self._earlier = [request.previous.keys_values for request in self._requests if request.previous is not None]
        assert isinstance(self._velocity, PackedVelocity)
        num_layers, *shape = self._velocity.carried_shape
        self._carried = torch.zeros(
            (num_layers, layout.num_blocks, *shape), dtype=self._velocity.carried_dtype, device=device
        )
        repeats = self._velocity.dit.repeats
        last_blocks = [
            block + (request.continues_at - request.codes_start) * repeats // size - 1
            for request, block in sequences
            if request.continues_at is not None
        ]
        num_rows = self._sampling.num_rows
        kept = [request for request in self._requests if request.continues_at is not None]
        blocks_of_rows = torch.tensor(last_blocks, dtype=torch.long, device=device).view(num_rows, -1)
        names = [request.request_id for request in kept]
        self._last_blocks = dict(zip(names, blocks_of_rows.T.contiguous(), strict=True))
        sizes = (EVALUATIONS_PER_STEP, num_layers, num_rows, *shape)
        self._kept = self._kept or {request.request_id: self._make_states(request, sizes) for request in kept}
        return continued

    def _make_states(self, request: SynthesisRequest, sizes: tuple[int, ...]) -> list[torch.Tensor]:
        """Return where the states of `request` go: those of the chunk before it, each read before it is written.

        Those of the first step are its own, as the scheduler may begin that step again.
        """
        if request.previous is not None:
            return [self._carried.new_empty(sizes), *request.previous.keys_values[1:]]
        num_steps = len(self._evaluations.modulations) // EVALUATIONS_PER_STEP
        return [self._carried.new_empty(sizes) for _ in range(num_steps)]

    def step(self) -> None:
        """Denoise all requests by one step."""
        times = self._evaluations.times[self._num_done :]
        for part in range(EVALUATIONS_PER_STEP):
            predicted = self._evaluate(self._num_done, part)
            self._velocity.platform.advance(
                predicted, self._locations, self._frames, self._slopes, times, self._packed, part,
                self._sampling.guidance_scale,
            )  # fmt: skip
        self._num_done += 1
        if self._num_done == self._sampling.num_steps - 1:  # frees what only evaluations need, for the vocoder
            self._inputs, self._carried, self._earlier = (), torch.empty(0), []

    def _evaluate(self, step: int, part: int) -> torch.Tensor:
        modulation = self._evaluations.modulations[step * EVALUATIONS_PER_STEP + part]
        inputs = (self._packed, modulation, *self._inputs)
        if not self._carries:
            return self._velocity(*inputs)
        if self._earlier:
            # Rows of all requests in the order of the layout.
            earlier = torch.stack([states[step][part] for states in self._earlier], dim=2)
            self._carried.index_copy_(1, self._continued, earlier.flatten(1, 2))
        predicted, keys_values = self._velocity(*inputs, self._carried)
        for name, blocks in self._last_blocks.items():
            torch.index_select(keys_values, 1, blocks, out=self._kept[name][step][part])
        if keys_values is self._carried:  # a graph has a copy of its own
            self._carried.zero_()
        return predicted

    def drop(self, request_ids: set[str]) -> None:
        """Stop denoising these requests."""
        parts = zip(self._requests, self._frames.split(self._lengths), strict=True)
        remaining = [(request, frames) for request, frames in parts if request.request_id not in request_ids]
        self._kept = {name: states for name, states in self._kept.items() if name not in request_ids}
        if remaining:
            requests, frames = zip(*remaining, strict=True)
            self._set_requests(list(requests), torch.cat(frames))

    def chunk_states(self, num_frames: int) -> dict[str, ChunkState]:
        """Return what chunks leave for the next ones, by stream, with at most `num_frames` of their spectrograms."""
        states, mels, repeats = {}, self.mels(), self._velocity.dit.repeats
        for request in self._requests:
            if request.stream is not None and request.continues_at is not None:
                heard_to, end = ((code - request.codes_start) * repeats for code in (request.end, request.continues_at))
                mel = mels[request.request_id][:, max(0, heard_to - num_frames) : end]
                states[request.stream] = ChunkState(request.continues_at, self._kept[request.request_id], mel)
        return states

    def mels(self) -> dict[str, torch.Tensor]:
        """Return the frames so far, (1, num_frames, mel_dim) by request id."""
        parts = zip(self._requests, self._frames.split(self._lengths), strict=True)
        return {request.request_id: frames[None] for request, frames in parts}
