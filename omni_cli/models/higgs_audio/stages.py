"""Higgs Audio v2's language model and codec on vLLM engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from omni_cli.backends.vllm.input_embeds_stage import EmbeddingTable
from omni_cli.backends.vllm.stage import ActiveRequest
from omni_cli.checkpoints.derive import read_config
from omni_cli.core.errors import InputError, StageError
from omni_cli.models.codec.decoder_stage import CodecStage
from omni_cli.models.codec.frame_stage import FrameStage, RowsPrompt
from omni_cli.models.codec.settings import CodecConfig
from omni_cli.models.higgs_audio.delayed_frames import CODES_BEFORE
from omni_cli.models.higgs_audio.family import BACKBONE, CODEC, SPEAKERS
from omni_cli.models.higgs_audio.prompts import load_processor, make_inputs
from omni_cli.models.voices import note_on_voice, speaker_for
from omni_cli.requests.outputs import GenerateRequest
from omni_cli.requests.voices import rate_notes
from omni_cli.stage.messages import Report
from omni_cli.stage.protocol import StageSpec

_GREEDY = "greedy codes that repeat are not drawn again, though the checkpoint's `ras_win_len` asks for it"
# Sampling settings that apply to every codebook.
_SAMPLING = {"temperature", "top_k", "top_p", "max_tokens", "min_tokens", "ignore_eos", "logprobs"}


class HiggsBackboneStage(FrameStage):
    """Generates frames of delayed codes; vLLM samples those of the first codebook as tokens."""

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
        overrides = {"architectures": [BACKBONE], "vocab_size": codes, "eos_token_id": None}
        return {**super().engine_args(), "hf_overrides": overrides}

    def warm_up_request(self) -> GenerateRequest:
        return GenerateRequest("", prompt="hello")

    @property
    def voices(self) -> tuple[str, ...]:
        return SPEAKERS

    def begin(self, active: ActiveRequest) -> tuple[RowsPrompt, dict[str, object]]:
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
        return RowsPrompt(torch.cat([rows, is_audio[:, None].to(rows)], dim=1), information), {}

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


class HiggsCodecStage(CodecStage):
    """Decodes frames of codes to a waveform."""

    architecture = CODEC

    def __init__(self, spec: StageSpec, emit: Callable[[Report], None]) -> None:
        assert isinstance(spec.stage, CodecConfig)
        if spec.stage.execution == "cudagraph":
            raise StageError(
                "this codec has no `execution: cudagraph`",
                stage=spec.stage.name,
                hint=f"--set {spec.stage.name}.execution=eager",
            )
        super().__init__(spec, emit)
