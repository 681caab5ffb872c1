"""Requests between noise and mel spectrogram, one step at a time: a single one, or several in packed blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from omni_cli.models.qwen2_5_omni.token2wav.packing import Layout, PackedVelocity
from omni_cli.models.qwen2_5_omni.token2wav.request import Carried, Conditioner, SynthesisRequest
from omni_cli.models.qwen2_5_omni.token2wav.solver import PackedSolver
from omni_cli.models.qwen2_5_omni.token2wav.velocity import EVALUATIONS_PER_STEP, Velocity, stepped


class Denoising(Protocol):
    """Requests with the same settings, all at the same step."""

    def step(self) -> None:
        """Denoise all requests by one step."""

    def drop(self, request_ids: set[str]) -> None:
        """Stop denoising these requests."""

    def carried(self, num_frames: int) -> dict[str, Carried]:
        """Return what chunks carry on, by stream, with at most `num_frames` of their heard mel spectrograms."""

    def mels(self) -> dict[str, torch.Tensor]:
        """Return the frames so far, (1, num_frames, mel_dim) by request id."""


class SingleDenoising:
    """A single request, bit for bit as transformers denoises it."""

    def __init__(self, velocity: Velocity, conditioner: Conditioner, request: SynthesisRequest) -> None:
        dit = velocity.dit
        self._request, self._velocity = request, velocity
        self._frames = request.noise(dit.repeats, dit.mel_dim).to(dit.device)
        self._num_done = 0
        self._evaluations = velocity.evaluations(request.sampling.schedule, num_rows=request.sampling.num_rows)
        self._conditions = conditioner.conditions([request])
        positions = torch.arange(self._frames.shape[1], device=self._frames.device)
        self._rotary = dit.rotary_embed(self._frames, positions.expand(request.sampling.num_rows, -1))
        # One for all rows and heads; attention broadcasts it.
        self._block_diff = dit._create_block_diff(self._frames)[:1, :1].to(torch.int16)

    def step(self) -> None:
        sampling, first = self._request.sampling, self._num_done * EVALUATIONS_PER_STEP
        modulations = iter(self._evaluations.modulations[first : first + EVALUATIONS_PER_STEP])

        def velocity(_: torch.Tensor, frames: torch.Tensor) -> torch.Tensor:
            rows = frames.expand(sampling.num_rows, -1, -1)
            predicted = self._velocity(rows, next(modulations), self._conditions, *self._rotary, self._block_diff)
            return sampling.guided(*predicted.chunk(2)) if sampling.is_guided else predicted

        self._frames = stepped(self._evaluations.times, self._num_done, self._frames, velocity)
        self._num_done += 1

    def drop(self, request_ids: set[str]) -> None:
        """Do nothing: no other request is left."""

    def carried(self, num_frames: int) -> dict[str, Carried]:
        """Return nothing: a chunk computes those before it again, bit for bit."""
        return {}

    def mels(self) -> dict[str, torch.Tensor]:
        return {self._request.request_id: self._frames}


class PackedDenoising:
    """Several requests in one call of the DiT; `num_blocks_for` rounds up to a prepared number of blocks.

    The frames of all requests are (num_frames, mel_dim), concatenated.
    """

    def __init__(
        self,
        velocity: PackedVelocity,
        conditioner: Conditioner,
        requests: Sequence[SynthesisRequest],
        num_blocks_for: Callable[[int], int],
        *,
        carries: bool = False,
    ) -> None:
        dit = velocity.dit
        self._velocity, self._conditioner, self._num_blocks_for = velocity, conditioner, num_blocks_for
        self._carries = carries or any(each.stream is not None for each in requests)
        self._num_done = 0
        # For each evaluation, the requests that go on and their last blocks' keys and values.
        self._kept: list[tuple[list[str], torch.Tensor]] = []
        self._sampling = requests[0].sampling
        self._evaluations = velocity.evaluations(self._sampling.schedule, num_rows=1)
        noise = torch.cat([each.noise(dit.repeats, dit.mel_dim)[0] for each in requests])
        self._set(list(requests), noise.to(dit.device))

    def _set(self, requests: list[SynthesisRequest], frames: torch.Tensor) -> None:
        dit, device = self._velocity.dit, frames.device
        num_rows = self._sampling.num_rows
        self._requests = requests
        self._lengths = [len(each.codes) * dit.repeats for each in requests]
        layout = Layout.of(self._lengths * num_rows, dit.block_size, num_blocks_for=self._num_blocks_for)
        firsts = [each.codes_start * dit.repeats for each in requests]
        # For each row, its frames among the packed ones.
        places = torch.cat([torch.arange(start, start + length) for start, length in layout.spans])
        places = places.view(num_rows, -1).to(device)
        guidance_scale = self._sampling.guidance_scale
        self._solver = PackedSolver(frames, places, layout.num_frames, self._evaluations, guidance_scale)
        conditions = self._conditioner.conditions(requests)
        packed = conditions.new_zeros(1, layout.num_frames, conditions.shape[-1])
        packed[0, places] = conditions
        self._conditions = self._velocity.conditions_proj(packed).float()
        tables = dit.rotary_embed(frames, layout.positions(firsts * num_rows).to(device)[None])
        self._rotary = [table.view(layout.num_blocks, dit.block_size, 1, -1) for table in tables]
        self._block_diff = layout.block_diff(self._carry(layout, device) if self._carries else None).to(device)

    def _carry(self, layout: Layout, device: torch.device) -> list[int]:
        """Set up for what earlier chunks have carried on and later ones need; return the blocks that are continued."""
        size = layout.block_size
        blocks = [start // size for start, _ in layout.spans]
        sequences = list(zip(self._requests * self._sampling.num_rows, blocks, strict=True))
        continued = [block for each, block in sequences if each.carried is not None]
        self._continued = torch.tensor(continued, dtype=torch.long, device=device)
        earlier = [each.carried.keys_values for each in self._requests if each.carried is not None]
        # (evaluations, layers, rows of all requests in the order of the layout, ...)
        self._earlier = torch.stack(earlier, dim=3).flatten(2, 3) if earlier else None
        num_layers, *shape = self._velocity.carried_shape
        self._carried = torch.zeros(
            (num_layers, layout.num_blocks, *shape), dtype=self._velocity.carried_dtype, device=device
        )
        repeats = self._velocity.dit.repeats
        last = [
            block + (each.continues_at - each.codes_start) * repeats // size - 1
            for each, block in sequences
            if each.continues_at is not None
        ]
        self._last = torch.tensor(last, dtype=torch.long, device=device)
        self._leaving = [each.request_id for each in self._requests if each.continues_at is not None]
        return continued

    def _evaluate(self, number: int) -> torch.Tensor:
        modulation = self._evaluations.modulations[number]
        given = (self._solver.packed, modulation, self._conditions, *self._rotary, self._block_diff)
        if not self._carries:
            return self._velocity(*given)
        if self._earlier is not None:
            self._carried.index_copy_(1, self._continued, self._earlier[number])
        predicted, *made = self._velocity(*given, self._carried)
        if self._leaving:
            kept = self._carried.new_empty(len(made), len(self._last), *self._carried.shape[2:])
            for layer, rows in zip(made, kept, strict=True):
                torch.index_select(layer, 0, self._last, out=rows)
            self._kept.append((self._leaving, kept))
        return predicted

    def step(self) -> None:
        first = self._num_done * EVALUATIONS_PER_STEP
        for number in range(first, first + EVALUATIONS_PER_STEP):
            self._solver.advance(self._evaluate(number), number)
        self._num_done += 1

    def drop(self, request_ids: set[str]) -> None:
        parts = zip(self._requests, self._solver.frames.split(self._lengths), strict=True)
        kept = [(each, frames) for each, frames in parts if each.request_id not in request_ids]
        if kept:
            self._set([each for each, _ in kept], torch.cat([frames for _, frames in kept]))

    def carried(self, num_frames: int) -> dict[str, Carried]:
        made, mels, repeats = {}, self.mels(), self._velocity.dit.repeats
        for each in self._requests:
            if each.stream is not None and each.continues_at is not None:
                parts = [kept[:, names.index(each.request_id) :: len(names)] for names, kept in self._kept]
                heard_to, end = ((code - each.codes_start) * repeats for code in (each.end, each.continues_at))
                mel = mels[each.request_id][:, max(0, heard_to - num_frames) : end]
                made[each.stream] = Carried(each.continues_at, torch.stack(parts), mel)
        return made

    def mels(self) -> dict[str, torch.Tensor]:
        parts = zip(self._requests, self._solver.frames.split(self._lengths), strict=True)
        return {each.request_id: frames[None] for each, frames in parts}
