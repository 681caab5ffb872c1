"""Qwen3-TTS's talker as a vLLM model; a position's input is a row of text and codec sides, or of a frame's codes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeTalkerResizeMLP
from vllm.config import VllmConfig
from vllm.distributed import get_pp_group
from vllm.model_executor.models.qwen3 import Qwen3Model
from vllm.model_executor.models.utils import PPMissingLayer

from omni_cli.models.codec.code_predictor import CodeSampling
from omni_cli.models.codec.talker_model import TalkerModel, talker_weights
from omni_cli.models.qwen3_tts import config as _register  # noqa: F401 - vLLM's processes read the configuration
from omni_cli.models.qwen3_tts.family import generation_settings


def read_code_sampling(folder: Path) -> CodeSampling:
    """Return the sampling of the code predictor for a talker that samples; of one code, it is greedy."""
    own = generation_settings(folder, "subtalker_")
    return CodeSampling(own["top_k"] if own["do_sample"] else 1, own["top_p"], own["temperature"])


class Qwen3TTSTalker(TalkerModel):
    """Loads the talker of a whole checkpoint except its text embeddings, whose rows come with a request."""

    decoder_class = Qwen3Model
    hf_to_vllm_mapper = talker_weights({"talker.model.text_embedding.": None, "speaker_encoder.": None})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        config = self.config
        self.sampling = read_code_sampling(Path(vllm_config.model_config.model))
        if get_pp_group().is_first_rank:
            sizes = SimpleNamespace(
                intermediate_size=config.text_hidden_size, hidden_size=config.hidden_size, hidden_act=config.hidden_act
            )
            self.text_projection = Qwen3OmniMoeTalkerResizeMLP(
                SimpleNamespace(thinker_hidden_size=config.text_hidden_size, text_config=sizes)
            )
        if not isinstance(self.code_predictor, PPMissingLayer):
            self._widen_predictor()

    def _widen_predictor(self) -> None:
        """Give the code predictor embeddings of the talker's width, which it projects to its own."""
        inner, width = self.code_predictor.config, self.config.hidden_size
        self.code_predictor.model.codec_embedding = nn.ModuleList(
            nn.Embedding(inner.vocab_size, width) for _ in range(self.num_codebooks - 1)
        )
        if inner.hidden_size != width:
            self.code_predictor.small_to_mtp_projection = nn.Linear(width, inner.hidden_size)

    def project_input_embeds(self, rows: torch.Tensor, _: Sequence[int]) -> torch.Tensor:
        """Return input rows (num_rows, hidden_size) of text embeddings with the codec side beside them."""
        size = self.config.text_hidden_size
        projected: torch.Tensor = self.text_projection(rows[:, :size]) + rows[:, size:]
        return projected
