"""Qwen3-TTS's models in vLLM; a position's input is a row of text and codec sides, or of a frame's codes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.models.qwen3 import Qwen3Model

from omni_cli.models.codec.code_predictor import CodeSampling
from omni_cli.models.codec.decoder_stage import CodecForDiffusion, CodecStage
from omni_cli.models.codec.talker_model import TalkerModel, talker_weights
from omni_cli.models.qwen3_tts.family import SPEECH_TOKENIZER, generation_settings
from omni_cli.models.qwen3_tts.modules import SpeechDecoder, make_text_projection, rename


class Qwen3TTSTalker(TalkerModel):
    """Loads the talker of a whole checkpoint except its text embeddings, whose rows come with a request."""

    decoder_class = Qwen3Model
    hf_to_vllm_mapper = talker_weights({"talker.model.text_embedding.": None, "speaker_encoder.": None})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        own = generation_settings(Path(vllm_config.model_config.model), "subtalker_")
        # Of one code, it is greedy.
        self.sampling = CodeSampling(own["top_k"] if own["do_sample"] else 1, own["top_p"], own["temperature"])
        if get_pp_group().is_first_rank:
            config = self.config
            self.text_projection = make_text_projection(config.text_hidden_size, config.hidden_size, config.hidden_act)

    def project_input_embeds(self, rows: torch.Tensor, _: Sequence[int]) -> torch.Tensor:
        """Return input rows (num_rows, hidden_size) of text embeddings with the codec side beside them."""
        size = self.config.text_hidden_size
        projected: torch.Tensor = self.text_projection(rows[:, :size]) + rows[:, size:]
        return projected


class Qwen3TTSCode2Wav(CodecForDiffusion):
    """Loads the decoder of a `speech_tokenizer` folder."""

    weights_prefix = "decoder."

    def make_codec(self, config: Any) -> nn.Module:
        decoder = config.decoder_config
        self.sample_rate = config.output_sample_rate
        self.codebook_size, self.num_codebooks = decoder.codebook_size, decoder.num_quantizers
        codec: nn.Module = SpeechDecoder._from_config(decoder, dtype=torch.get_default_dtype())
        return codec

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        return super().load_weights((rename(name), weight) for name, weight in weights)


class Qwen3TTSCodecStage(CodecStage):
    """Decodes frames of codes to a waveform; its engine's model is the checkpoint's `speech_tokenizer` folder."""

    def engine_args(self) -> dict[str, object]:
        arguments = super().engine_args()
        return {**arguments, "model": str(Path(str(arguments["model"]), SPEECH_TOKENIZER))}
