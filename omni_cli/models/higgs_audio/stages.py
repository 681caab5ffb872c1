"""Higgs Audio v2 on vLLM: frames of codes, each from one hidden state, and samples from frames of codes.

vLLM's Llama has a second feed-forward network, and second norms, for positions that are sound. The input of a position
is a row: of a prompt from the request, of a frame the sum of its codes' embeddings. The last number of a row is one for
sound and zero for text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaMLP, LlamaModel
from vllm.model_executor.models.utils import WeightsMapper, maybe_prefix

from omni_cli.backends.execution.counters import ExecutionCounters
from omni_cli.backends.execution.graphs import GraphBackend
from omni_cli.backends.vllm.input_embeds_stage import EmbeddingTable, InputEmbedsModel
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.checkpoints.derive import read_config
from omni_cli.core.errors import InputError, StageError
from omni_cli.models.codec.decoder_stage import CodecForDiffusion
from omni_cli.models.codec.frame_stage import FrameStage
from omni_cli.models.codec.streaming import LookaheadDecoder
from omni_cli.models.higgs_audio.delayed_frames import CODES_BEFORE, DelayedFrames, read_repeat_limit
from omni_cli.models.higgs_audio.family import SPEAKERS
from omni_cli.models.higgs_audio.prompts import (
    load_processor,
    load_tokenizer,
    make_inputs,
    tokenizer_class,
    tokenizer_folder,
)
from omni_cli.models.voices import note_on_voice, speaker_for
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.voices import rate_notes
from omni_cli.stage.messages import Report
from omni_cli.stage.protocol import StageSpec
from omni_cli.stage.request_payloads import EmbeddedPrompt


class Dual(nn.Module):
    """Two modules, of which each position takes one; both are computed, so that shapes do not depend on the input."""

    is_audio: torch.Tensor

    def __init__(self, text: nn.Module, audio: nn.Module) -> None:
        super().__init__()
        self.text, self.audio = text, audio

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.where(self.is_audio[: len(hidden)], self.audio(hidden), self.text(hidden))


class DualNorm(Dual):
    """A norm with vLLM's interface: with a residual, it returns the sum, too."""

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return super().forward(hidden)
        total = hidden + residual
        return super().forward(total), total


class DualLayer(LlamaDecoderLayer):
    """vLLM's layer, in which text and sound have norms and feed-forward networks of their own."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config, prefix)
        config = vllm_config.model_config.hf_config
        audio_mlp = LlamaMLP(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            hidden_act=config.hidden_act,
            quant_config=self.get_quant_config(vllm_config),
            bias=config.mlp_bias,
            prefix=f"{prefix}.audio_mlp",
        )
        for name in ("input_layernorm", "post_attention_layernorm"):
            audio_norm = RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
            setattr(self, name, DualNorm(self.get_submodule(name), audio_norm))
        self.mlp = Dual(self.get_submodule("mlp"), audio_mlp)


class HiggsBackbone(InputEmbedsModel):
    """Loads the language model except its text embeddings, and the codec for recordings of voices."""

    frame_store = DelayedFrames
    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_prefix={
            "model.embed_tokens.": None,
            "model.embed_audio_tokens.embed_audio_tokens.": "code_embeddings.",
            # The first is of another task, the others are copies.
            "text_lm_head.": None,
            "audio_decoder_proj.": None,
        },
        orig_to_new_substr={
            f".{where}{name}.": f".{name}.{part}."
            for where, part in (("", "text"), ("audio_", "audio"))
            for name in ("mlp", "input_layernorm", "post_attention_layernorm")
        },
    )

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        self.config = config
        self._folder = vllm_config.model_config.model
        self.repeat_limit = read_repeat_limit(Path(self._folder))
        self.num_codebooks: int = config.num_codebooks
        num_rows, hidden_size = vllm_config.scheduler_config.max_num_batched_tokens, config.hidden_size
        self.model = LlamaModel(vllm_config=vllm_config, prefix=maybe_prefix(prefix, "model"), layer_type=DualLayer)
        self.model.embed_tokens = nn.Identity()
        num_codes = config.num_codebooks * config.codebook_size
        self.code_embeddings = nn.Embedding(num_codes, hidden_size)
        self.audio_lm_head = nn.Linear(hidden_size, num_codes, bias=False)
        self.make_input_buffers(num_rows, hidden_size + 1, hidden_size)
        self.register_buffer("is_audio", torch.zeros(num_rows, 1, dtype=torch.bool), persistent=False)
        for module in self.model.modules():
            if isinstance(module, Dual):
                module.is_audio = self.is_audio
        self.predictor_counters = ExecutionCounters()

    def project_input(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the embeddings (num_tokens, hidden_size) of rows, and note which of them are sound."""
        self.is_audio[: len(rows)].copy_(rows[:, -1:] != 0)
        return rows[:, :-1]

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the logits (num_requests, codebook_size) of the first codebook."""
        return nn.functional.linear(hidden_states, self.audio_lm_head.weight[: self.config.codebook_size])

    def compute_other_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the logits (num_requests, num_codebooks - 1, codebook_size) of the other codebooks."""
        size = self.config.codebook_size
        logits = nn.functional.linear(hidden_states, self.audio_lm_head.weight[size:])
        return logits.unflatten(-1, (-1, size))

    def rows_of_codes(self, codes: torch.Tensor) -> torch.Tensor:
        """Return input rows (num_frames, hidden_size + 1) of codes (num_frames, num_codebooks)."""
        offsets = torch.arange(self.num_codebooks, device=codes.device) * self.config.codebook_size
        rows = self.code_embeddings(codes + offsets).sum(dim=-2)
        return torch.cat([rows, rows.new_ones((len(rows), 1))], dim=-1)

    def capture_predictor(self, backend: GraphBackend, *, compiles: bool) -> None:
        """Capture nothing: codes are drawn by plain PyTorch."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the model, and the encoder of the codec from the checkpoint's other folder."""
        loaded = super().load_weights(weights)
        self.codec = load_tokenizer(self._folder).to(self.audio_lm_head.weight.device)
        self.codec.acoustic_decoder = self.codec.decoder_semantic = None
        return loaded | {f"codec.{name}" for name, _ in self.codec.named_parameters()}


class HiggsCodec(CodecForDiffusion):
    """Loads the decoder from the checkpoint's other folder; its convolutions look ahead."""

    weights_prefix = ""

    def make_codec(self, config: Any) -> nn.Module:
        kind = tokenizer_class()
        folder = tokenizer_folder(self._model)
        # Read only to see whether a weight is missing or not a number.
        self.secondary_weights = (DefaultModelLoader.Source(str(folder), revision=None, prefix="codec."),)
        own = kind.config_class.from_pretrained(folder)
        self.sample_rate, self.codebook_size = own.sample_rate, own.codebook_size
        self.num_codebooks = own.num_quantizers
        codec: nn.Module = kind._from_config(own, dtype=torch.get_default_dtype())
        codec.acoustic_encoder = codec.encoder_semantic = codec.semantic_model = codec.decoder_semantic = None
        return codec

    def make_decoder(self, codec: nn.Module) -> LookaheadDecoder:
        return LookaheadDecoder(
            codec.acoustic_decoder, lambda codes: codec.decode(codes).audio_values[:, 0], codec.config.hop_length
        )

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load the codec's own weights instead of those of the language model, which are not read."""
        whole = load_tokenizer(self._model, next(self.codec.parameters()).dtype)
        self.codec.load_state_dict(whole.state_dict(), strict=False)
        return {f"codec.{name}" for name, _ in self.codec.named_parameters()}


_GREEDY = "greedy codes that repeat are not drawn again, though the checkpoint's `ras_win_len` asks for it"
# Sampling settings that apply to every codebook.
_SAMPLING = {"temperature", "top_k", "top_p", "max_tokens", "min_tokens", "ignore_eos", "logprobs"}


class HiggsBackboneStage(FrameStage):
    """Generates frames of delayed codes; vLLM samples those of the first codebook as tokens."""

    voices = SPEAKERS

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        if spec.stage.has_ranks_elsewhere:
            raise StageError(
                "Higgs Audio v2 runs on one rank", stage=spec.stage.name, hint="`--replicas N` starts several"
            )
        super().__init__(spec, emit)
        self.num_codebooks = self.config.num_codebooks
        (model,) = self.engine.collective_rpc("get_model")
        self._processor: Any = load_processor(spec.model, model.codec)
        self._limit = model.repeat_limit
        self._embed = EmbeddingTable(spec.model, "model.embed_tokens.weight", self.dtype)
        self._embed_code = EmbeddingTable(spec.model, "model.embed_audio_tokens.embed_audio_tokens.weight", self.dtype)

    def engine_args(self) -> dict[str, object]:
        codes = read_config(Path(self.spec.model))["codebook_size"]
        # What vLLM samples are codes, whose end it does not know.
        overrides = {"architectures": [self.role.architecture], "vocab_size": codes, "eos_token_id": None}
        return {**super().engine_args(), "hf_overrides": overrides}

    def warm_up_request(self) -> GenerateRequest:
        return GenerateRequest("", prompt="hello")

    def begin(self, active: ActiveRequest) -> tuple[EmbeddedPrompt, dict[str, object]]:
        request = active.request
        sampling = {**self.spec.ar.sampling.set_values(), **request.sampling}
        if useless := sampling.keys() - _SAMPLING:
            raise InputError(f"this model's codes are not sampled with `{min(useless)}`", hint="drop it")
        is_greedy = sampling.get("temperature") == 0
        if self._limit is not None and not is_greedy and sampling.get("logprobs") is not None:
            why = "codes that are drawn again, as the checkpoint's `ras_win_len` asks, have no logprobs"
            raise InputError(why, hint="drop `logprobs`, or set `temperature` to 0")
        before = None
        with torch.inference_mode():
            inputs = make_inputs(self._processor, request, self.spec.ar.system_prompt)
        token_ids = inputs["input_ids"][0]
        rows = self._embed(token_ids.tolist())
        is_audio = (token_ids == self.config.audio_token_id) | (token_ids == self.config.audio_delay_token_id)
        if "audio_input_ids" in inputs:
            before = inputs["audio_input_ids"][0].cpu()
            codes = before + torch.arange(self.num_codebooks) * self.config.codebook_size
            rows[is_audio] = self._embed_code(codes.flatten().tolist()).unflatten(0, codes.shape).sum(dim=1)
        voice = request.speech.speaker and speaker_for(request.speech.speaker, SPEAKERS)
        rate = self._processor.feature_extractor.sampling_rate
        notes = (*note_on_voice(request.speech.speaker, voice or ""), *rate_notes(request.speech.voices, rate))
        active.context["notes"] = (*notes, _GREEDY) if self._limit is not None and is_greedy else notes
        information = {} if before is None or self._limit is None else {CODES_BEFORE: before[-self._limit.window :]}
        rows = torch.cat([rows, is_audio[:, None].to(rows)], dim=1)
        return EmbeddedPrompt([0] * len(rows), rows, more=information), {}

    def is_end(self, active: ActiveRequest) -> bool:
        """All codes of the last frame are the end."""
        return bool((active.context["codes"][-1] == self.config.audio_stream_eos_id).all())

    def num_spoken(self, active: ActiveRequest) -> int:
        """Count the frames without the delay: the first frame of all is the begin, and one after the last the end."""
        num_codes = len(active.context.get("codes", [])) - 1 - ("ended" in active.context)
        return max(0, num_codes - self.num_codebooks + 1)

    def num_reported(self, active: ActiveRequest) -> int:
        return len(active.token_ids)

    def speech(self, active: ActiveRequest, begin: int, end: int) -> torch.Tensor:
        """Undo the delay; begins and ends among the codes become the last code, as in the reference."""
        delayed = self.frames(active, begin + 1, end + self.num_codebooks)
        codes = [delayed[index : index + end - begin, index] for index in range(self.num_codebooks)]
        return torch.stack(codes, dim=1).clamp(max=self.config.audio_stream_bos_id - 1)
