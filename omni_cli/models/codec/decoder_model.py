"""A codec decoder as a vLLM diffusion model: frames of codes in, samples out, piece by piece."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import rename_source_key
from vllm.config import VllmConfig

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.cuda_graphs import CudaGraphBackend
from omni_cli.backends.execution.ranges import clock_for
from omni_cli.backends.vllm.diffusion_runner import DiffusionInput, DiffusionModel
from omni_cli.checkpoints.shards import lacking, shards_with_prefix
from omni_cli.models.codec.streaming import DecoderState, Piece, StreamingCodecDecoder
from omni_cli.stage.payloads import get_tensor


class CodecForDiffusion(DiffusionModel):
    """transformers' codec as a part of a checkpoint; its weights' names begin with `weights_prefix`.

    A request of the engine is one piece of a stream, whose state stays here until `forget`. Its prompt is the first
    codebook's codes; its information has all `codes` (num_codebooks, num_frames), the name of the `stream`, and
    `is_last`.
    """

    weights_prefix: ClassVar[str]
    # True if the last frames of a piece wait for the next one, unless it is the stream's last.
    looks_ahead: ClassVar[bool] = False
    sample_rate: int
    codebook_size: int
    num_codebooks: int

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self._model = vllm_config.model_config.model
        self.allow_patterns_overrides = shards_with_prefix(self._model, self.weights_prefix)
        self.codec = self.make_codec(vllm_config.model_config.hf_config)
        self._decoder = self.make_decoder(self.codec)
        self._states: dict[str, DecoderState] = {}
        self._clock = clock_for(vllm_config.device_config.device_type)
        self._marks: tuple[object, object] | None = None

    def make_codec(self, config: Any) -> nn.Module:
        """Create the codec from its configuration; set `sample_rate`, `codebook_size` and `num_codebooks`."""
        raise NotImplementedError

    def make_decoder(self, codec: nn.Module) -> Any:
        """Create what decodes pieces, with the interface of `StreamingCodecDecoder`."""
        return StreamingCodecDecoder(codec)

    def use_graphs(self, stage: str, max_num_seqs: int, *, first: Sequence[int], later: Sequence[int]) -> None:
        """Replay pieces of these numbers of frames, a stream's first and later ones, from CUDA graphs."""
        device = next(self.codec.parameters()).device
        example = torch.zeros((max_num_seqs, self.num_codebooks, 1), dtype=torch.long, device=device)
        self._decoder.use_graphs(CudaGraphBackend(device), stage=stage, first=first, later=later, example=example)

    @property
    def counters(self) -> ExecutionCounters:
        """Counters of the decoder's calls."""
        counters: ExecutionCounters = self._decoder.counters
        return counters

    @torch.inference_mode()
    def sample(self, inputs: Sequence[DiffusionInput]) -> list[torch.Tensor]:
        """Return the samples (num_samples,) float32 of each piece; a stream may have one at a time."""
        begin = self._clock.mark()
        pieces = [self._piece(item) for item in inputs]
        waveforms = [samples.float() for samples in self._decoder.decode(pieces)]
        self._marks = (begin, self._clock.mark())
        return waveforms

    def _piece(self, item: DiffusionInput) -> Piece:
        (stream,) = item.information["stream"]
        codes = get_tensor(dict(item.information), "codes", num_dims=2)
        (is_last,) = item.information["is_last"]
        state = self._states.setdefault(stream, DecoderState())
        return Piece(codes.to(item.token_ids.device).long(), state, bool(is_last))

    @property
    def latest_s(self) -> float:
        """Seconds that the latest call of `sample` took on the device."""
        assert self._marks is not None
        return self._clock.seconds(*self._marks)

    def forget(self, stream: str) -> None:
        """Drop the state of a stream that has ended."""
        self._states.pop(stream, None)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the codec's weights by transformers' names for them; raises `CheckpointError` if any is missing."""
        prefix, renamings = self.weights_prefix, get_model_conversion_mapping(self.codec)
        state = {
            rename_source_key(name.removeprefix(prefix), renamings, [])[0]: weight
            for name, weight in weights
            if name.startswith(prefix)
        }
        missing = self.codec.load_state_dict(state, strict=False).missing_keys
        if missing:
            raise lacking(self._model, [prefix + name for name in missing])
        return {f"codec.{name}" for name in state}
