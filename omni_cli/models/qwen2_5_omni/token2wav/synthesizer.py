"""token2wav's modules in the mode, batching and precision of a stage's keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import nn
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from omni_cli.config.schema import Precision
from omni_cli.execution.denoiser import GraphDenoiser, prepare_denoiser
from omni_cli.execution.graphs import MAX_GRAPHS
from omni_cli.execution.precision import arithmetic, precision_of, reduce_weights, use_precision
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig
from omni_cli.models.qwen2_5_omni.token2wav.cuda.buckets import bucket, buckets
from omni_cli.models.qwen2_5_omni.token2wav.denoising import Denoising, PackedDenoising, SingleDenoising
from omni_cli.models.qwen2_5_omni.token2wav.packing import PackedVelocity
from omni_cli.models.qwen2_5_omni.token2wav.request import Conditioner, DenoisingSettings, SynthesisRequest
from omni_cli.models.qwen2_5_omni.token2wav.velocity import Velocity
from omni_cli.models.qwen2_5_omni.token2wav.vocoder import PackedVocoder, Vocoder, VocoderInput

MAX_BUCKETS = 64
# Blocks in one call per thread of a CPU, about one request of 2.5 s: more is no faster, and then the first waveforms
# come later and threads wait longer for each other.
BLOCKS_PER_THREAD = 24
# Four seconds of guided speech; graphs are captured ahead for batches of that much per request of `max_num_seqs`.
TYPICAL_BLOCKS = 34


class Synthesizer:
    """Denoises requests and makes their waveforms; `denoiser` counts the DiT's calls by mode."""

    def __init__(
        self,
        token2wav: Qwen2_5OmniToken2WavModel,
        speakers: Mapping[str, Mapping[str, torch.Tensor]],
        stage: Token2WavConfig,
    ) -> None:
        dit, vocoder = token2wav.code2wav_dit_model, token2wav.code2wav_bigvgan_model
        self._stage, self.device = stage, str(dit.device)
        self._precision: Precision = stage.precision or "float32"
        use_precision(self._precision, stage=stage.name, device=self.device)
        self._is_packed = stage.batching == "padded"
        self.velocity = PackedVelocity(dit) if self._is_packed else Velocity(dit)
        self._conditioner = Conditioner(dit, speakers)
        if self._precision == "bfloat16":
            for module in (*self._evaluated, vocoder):
                reduce_weights(module)
        self.vocoder = Vocoder(vocoder)
        if self._is_packed and dit.device.type == "cpu":
            if stage.execution == "eager" and self._precision == "float32":
                self.velocity.fuse()
        elif self._is_packed:
            from omni_cli.models.qwen2_5_omni.token2wav.cuda.fused_activation import FusedActivation, compile_ahead
            from omni_cli.models.qwen2_5_omni.token2wav.cuda.fused_mean import fused_mean

            self.velocity.fuse()
            self.vocoder = PackedVocoder(vocoder, FusedActivation, fused_mean, compile_ahead)
        # Without packing, shapes follow the number of codes: code is compiled for all shapes, and there is one graph
        # per number of codes, which pays off within its first request. With packing, there is one per bucket.
        self.denoiser = prepare_denoiser(
            self.velocity,
            stage.execution,
            stage=stage.name,
            device=self.device,
            dynamic=True,
            max_graphs=MAX_BUCKETS if self._is_packed else MAX_GRAPHS,
            # `PackedDenoising` takes rows out of them before the next call.
            clone_outputs=not self._is_packed,
        )
        if isinstance(self.vocoder, PackedVocoder) and self._has_graphs:
            prepare = functools.partial(prepare_denoiser, mode="cudagraph", stage=stage.name, device=self.device)
            self.vocoder.use_graphs(prepare)

    @property
    def _evaluated(self) -> list[nn.Module]:
        """The modules of each evaluation; embeddings of times and speakers, which run once, stay in float32."""
        velocity, dit = self.velocity, self.velocity.dit
        blocks = [part for block in dit.transformer_blocks for part in (block.attn, block.ff)]
        is_packed = isinstance(velocity, PackedVelocity)
        entry = [velocity.frames_proj, velocity.conditions_proj] if is_packed else [dit.input_embed.proj]
        return [*entry, *blocks, dit.proj_out]

    @property
    def precision(self) -> str:
        """Arithmetic of the layers of an evaluation and of the vocoder, read back from them."""
        return precision_of([*self._evaluated, self.vocoder.module])

    @property
    def batching(self) -> str:
        """Batching, read back from the modules."""
        return "padded" if isinstance(self.velocity, PackedVelocity) else "exact"

    @property
    def carries(self) -> bool:
        """True if chunks carry on what the next one of their stream needs."""
        return self._is_packed and not self._stage.stream_context_codes

    @property
    def runs_together(self) -> bool:
        """True if all requests at once are faster than some of them after the others."""
        return self._is_packed and self.device != "cpu"

    @property
    def num_lanes(self) -> int:
        """Groups that run at the same time, each on its own threads.

        The number of threads changes results by rounding, so `exact` requests always have all of them.
        """
        is_eager = self._stage.execution == "eager"
        return torch.get_num_threads() if self._is_packed and is_eager and self.device == "cpu" else 1

    def arithmetic(self) -> AbstractContextManager[object]:
        return arithmetic(self._precision, self.device)

    def groups(self, requests: Sequence[SynthesisRequest]) -> Iterator[list[SynthesisRequest]]:
        """Yield the requests that run together: single ones, or those with the same denoising settings."""
        if not self._is_packed:
            yield from ([each] for each in requests)
            return
        alike: dict[DenoisingSettings, list[SynthesisRequest]] = {}
        for each in requests:
            alike.setdefault(each.sampling, []).append(each)
        for same in alike.values():
            yield from self._fitting(same)

    def _fitting(self, requests: Sequence[SynthesisRequest]) -> Iterator[list[SynthesisRequest]]:
        """Split requests on a CPU in order, into groups of `BLOCKS_PER_THREAD` at most, or of one request.

        There are enough groups for all lanes, if there are enough requests.
        """
        dit = self.velocity.dit
        sizes = [each.sampling.num_rows * -(-len(each.codes) * dit.repeats // dit.block_size) for each in requests]
        most = sum(sizes)
        if self.device == "cpu":
            lanes = self.num_lanes
            most = min(BLOCKS_PER_THREAD * (torch.get_num_threads() // lanes), -(-most // lanes))
        group: list[SynthesisRequest] = []
        num_blocks = 0
        for each, size in zip(requests, sizes, strict=True):
            if group and num_blocks + size > most:
                yield group
                group, num_blocks = [], 0
            group.append(each)
            num_blocks += size
        yield group

    def noise(self, request: SynthesisRequest) -> torch.Tensor:
        return request.noise(self.velocity.dit.repeats, self.velocity.dit.mel_dim)

    def begin(self, requests: Sequence[SynthesisRequest]) -> Denoising:
        """Start `requests` of one group from noise."""
        if self._is_packed:
            return self._packed(requests, self._num_blocks_for)
        (request,) = requests
        return SingleDenoising(self.velocity, self._conditioner, request)

    def _packed(self, requests: Sequence[SynthesisRequest], num_blocks_for: Callable[[int], int]) -> PackedDenoising:
        # Calls of one shape share a graph, and so have the same arguments with chunks and without.
        carries = self.carries and self._has_graphs
        return PackedDenoising(self.velocity, self._conditioner, requests, num_blocks_for, carries=carries)

    def _num_blocks_for(self, used: int) -> int:
        return bucket(used) if self._has_graphs else used

    @property
    def _has_graphs(self) -> bool:
        return isinstance(self.denoiser, GraphDenoiser)

    def waveforms(
        self, requests: Sequence[SynthesisRequest], mels: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield request ids with samples (num_samples,) float32 in [-1, 1] on the host, as soon as they are ready."""
        repeats, samples_per_frame = self.velocity.dit.repeats, self.vocoder.samples_per_frame
        return self.vocoder.waveforms(
            [
                VocoderInput.of(each, mels[each.request_id], repeats=repeats, samples_per_frame=samples_per_frame)
                for each in requests
            ]
        )

    def capture_ahead(self, request: SynthesisRequest, max_concurrency: int | None) -> None:
        """Capture the graphs of all buckets up to that of a full batch, with the settings of `request`."""
        if not self._is_packed or not self._has_graphs:
            return
        most = self._stage.max_num_seqs or 1
        largest = bucket(min(most, max_concurrency or most) * TYPICAL_BLOCKS)
        with self.arithmetic():
            # The largest first, whose memory the others then share.
            for size in reversed(list(buckets(largest))):
                rounded = functools.partial(max, size)
                self._packed([request], rounded).step()
            self.vocoder.capture_ahead()


def codes_per_block(token2wav: Qwen2_5OmniToken2WavModel) -> int:
    """Return the codes per block of the DiT's attention; context that begins with a block gives the whole's values."""
    dit = token2wav.code2wav_dit_model
    return max(1, int(dit.block_size) // int(dit.repeats))
