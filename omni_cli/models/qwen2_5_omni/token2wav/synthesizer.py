"""token2wav's modules in the mode, batching and precision of a stage's keys."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel

from omni_cli.backends.execution.graphs import MAX_GRAPHS
from omni_cli.backends.execution.modes import GraphMode, make_execution_mode
from omni_cli.backends.execution.precision import arithmetic, get_precision, reduce_weights, use_precision
from omni_cli.config.schema import Precision
from omni_cli.core.batches import split_by_size
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig
from omni_cli.models.qwen2_5_omni.token2wav.cuda import bucket, buckets
from omni_cli.models.qwen2_5_omni.token2wav.denoising import Conditioner, Denoising
from omni_cli.models.qwen2_5_omni.token2wav.platform import CpuPlatform, Platform, VocoderInput
from omni_cli.models.qwen2_5_omni.token2wav.request import DenoisingSettings, SynthesisRequest
from omni_cli.models.qwen2_5_omni.token2wav.velocity import PackedVelocity, Velocity

MAX_BUCKETS = 64
# Four seconds of guided speech. Graphs are captured ahead for batches of up to `max_num_seqs` such requests.
TYPICAL_BLOCKS = 34


class Synthesizer:
    """Denoises requests and makes their waveforms; `execution_mode` counts the DiT's calls by mode.

    `batching: exact` and `padded` differ here only: in the layers of the DiT, which `token2wav` gives up for `padded`,
    in `platform`, and in the requests of a batch, which is a single one with `exact`.
    """

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
        self.velocity = PackedVelocity(dit, self._make_platform(dit.device)) if self._is_packed else Velocity(dit)
        self.platform = self.velocity.platform
        self._conditioner = Conditioner(self.velocity.dit, speakers)
        if self._precision == "bfloat16":
            for module in (*self.velocity.evaluated_modules, vocoder):
                reduce_weights(module)
        self.vocoder = self.platform.make_vocoder(vocoder)
        # Without packing, shapes follow the number of codes: code is compiled for all shapes, and there is one graph
        # per number of codes, which pays off within its first request. With packing, there is one per bucket.
        self.execution_mode = make_execution_mode(
            self.velocity,
            stage.execution or "eager",
            stage=stage.name,
            device=self.device,
            max_graphs=MAX_BUCKETS if self._is_packed else MAX_GRAPHS,
            # `Denoising` reads them before the next call.
            clone_outputs=False,
        )
        self._has_graphs = isinstance(self.execution_mode, GraphMode)
        if isinstance(self.execution_mode, GraphMode):
            # Neither runs beside the other, so that their graphs can use the same memory.
            keys = {"backend": self.execution_mode.backend, "stage": stage.name, "device": dit.device}
            self.vocoder.use_graphs(functools.partial(GraphMode, **keys))

    def _make_platform(self, device: torch.device) -> Platform:
        if device.type == "cpu":
            return CpuPlatform(self._stage.execution or "eager", self._precision)
        # Needs Triton, which is installed wherever CUDA is available.
        from omni_cli.models.qwen2_5_omni.token2wav.cuda.platform import CudaPlatform

        return CudaPlatform()

    @property
    def precision(self) -> str:
        """Arithmetic of the layers of an evaluation and of the vocoder, read back from them."""
        return get_precision([*self.velocity.evaluated_modules, self.vocoder.module])

    @property
    def batching(self) -> str:
        """Batching, read back from the modules."""
        return "padded" if isinstance(self.velocity, PackedVelocity) else "exact"

    @property
    def carries(self) -> bool:
        """True if chunks leave a state for the next one of their stream."""
        return self._is_packed and not self._stage.stream_context_codes

    def arithmetic(self) -> AbstractContextManager[object]:
        return arithmetic(self._precision, self.device)

    def batches(self, requests: Sequence[SynthesisRequest]) -> Iterator[list[SynthesisRequest]]:
        """Yield the requests that run together: single ones, or those with the same denoising settings.

        They keep their order. No batch has more blocks than the platform wants, unless it is a single request.
        """
        if not self._is_packed:
            yield from ([request] for request in requests)
            return
        alike: dict[DenoisingSettings, list[SynthesisRequest]] = {}
        for request in requests:
            alike.setdefault(request.sampling, []).append(request)
        for group in alike.values():
            max_blocks = self.platform.get_max_blocks(sum(map(self._get_num_blocks, group)))
            yield from split_by_size(group, self._get_num_blocks, max_blocks)

    def _get_num_blocks(self, request: SynthesisRequest) -> int:
        dit = self.velocity.dit
        return request.sampling.num_rows * -(-len(request.codes) * int(dit.repeats) // int(dit.block_size))

    def noise(self, request: SynthesisRequest) -> torch.Tensor:
        return request.noise(self.velocity.dit.repeats, self.velocity.dit.mel_dim)

    def begin(
        self, requests: Sequence[SynthesisRequest], num_blocks_for: Callable[[int], int] | None = None
    ) -> Denoising:
        """Start `requests` of one batch from noise; with graphs, in the smallest bucket by default."""
        if not (self._is_packed and self._has_graphs):
            return Denoising(self.velocity, self._conditioner, requests)
        # Calls of one shape share a graph, and so have the same arguments with chunks and without.
        return Denoising(self.velocity, self._conditioner, requests, num_blocks_for or bucket, carries=self.carries)

    def waveforms(
        self, requests: Sequence[SynthesisRequest], mels: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield request ids with samples (num_samples,) float32 in [-1, 1] on the host, as soon as they are ready."""
        sizes = {"repeats": self.velocity.dit.repeats, "samples_per_frame": self.vocoder.samples_per_frame}
        return self.vocoder.waveforms(
            [VocoderInput.from_mel(request, mels[request.request_id], **sizes) for request in requests]
        )

    def capture_ahead(self, request: SynthesisRequest, max_concurrency: int | None) -> None:
        """Capture the graphs of all buckets up to that of a full batch, with the settings of `request`."""
        if not (self._is_packed and self._has_graphs):
            return
        max_num_seqs = self._stage.max_num_seqs or 1
        num_blocks = min(max_num_seqs, max_concurrency or max_num_seqs) * TYPICAL_BLOCKS
        largest = bucket(self.platform.get_max_blocks(num_blocks))
        with self.arithmetic():
            # The largest first, whose memory the others then share.
            for size in reversed(list(buckets(largest))):
                self.begin([request], functools.partial(max, size)).step()
            self.vocoder.capture_ahead()
