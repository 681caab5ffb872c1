"""Qwen2.5-Omni's token2wav as a vLLM diffusion model: codec tokens -> DiT -> mel spectrogram -> BigVGAN -> waveform.

The modules and the solver are transformers' own; this class wraps them as a model that vLLM loads and that the
diffusion runner calls with a batch of requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavModel
from vllm.config import VllmConfig
from vllm.model_executor.models.utils import AutoWeightsLoader, WeightsMapper

from omni_cli.backends.execution.modes import ExecutionMode
from omni_cli.backends.vllm.diffusion_runner import NOT_FINISHED, DiffusionInput, DiffusionModel, Unfinished
from omni_cli.checkpoints.shards import shards_with_prefix
from omni_cli.models.qwen2_5_omni.connectors import load_speakers
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig
from omni_cli.models.qwen2_5_omni.token2wav.request import DenoisingSettings, SynthesisRequest
from omni_cli.models.qwen2_5_omni.token2wav.scheduler import SpeechScheduler
from omni_cli.models.qwen2_5_omni.token2wav.synthesizer import Synthesizer


class Qwen2_5OmniToken2WavForDiffusion(DiffusionModel):
    """Loads the weights called `token2wav.` of a Qwen2.5-Omni checkpoint; requests take several steps of the engine."""

    hf_to_vllm_mapper = WeightsMapper(orig_to_new_prefix={"thinker.": None, "talker.": None})

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        model_config = vllm_config.model_config
        self.allow_patterns_overrides = shards_with_prefix(model_config.model, "token2wav.")
        self.token2wav = Qwen2_5OmniToken2WavModel(model_config.hf_config.token2wav_config)
        self.speakers = load_speakers(model_config.model)
        dit = self.token2wav.code2wav_dit_model
        # Context that begins with a block of the DiT's attention gives the whole's values.
        self.codes_per_block = max(1, int(dit.block_size) // int(dit.repeats))
        # For the whole process, which is this stage's own. By default cuDNN selects the vocoder's kernels in every
        # call, and waveforms differ by 2e-4 from call to call. benchmarks/gpu/vocoder_repeats.py measures the cost.
        torch.backends.cudnn.deterministic = True

    def prepare(self, stage: Token2WavConfig) -> ExecutionMode:
        """Make the modules run as `stage` asks, once the weights are loaded; raises `StageError`."""
        self.synthesizer = Synthesizer(self.token2wav, self.speakers, stage)
        # Layers for packed sequences have joined weights, and the layers that they were made of are not called again.
        self.token2wav.code2wav_dit_model = self.synthesizer.velocity.dit
        self.scheduler = SpeechScheduler(self.synthesizer)
        return self.synthesizer.execution_mode

    @torch.inference_mode()
    def capture_ahead(self, num_codes: int, max_concurrency: int | None) -> None:
        """Capture graphs for up to `max_concurrency` requests at once, by default `max_num_seqs`."""
        codes = torch.zeros(num_codes, dtype=torch.long, device=self.token2wav.device)
        speaker = next(iter(self.speakers))
        request = SynthesisRequest("warm-up", codes, 0, 0, num_codes, 0, speaker, DenoisingSettings(2, 0.5, -1.0))
        self.synthesizer.capture_ahead(request, max_concurrency)

    @torch.inference_mode()
    def sample(self, inputs: Sequence[DiffusionInput]) -> dict[str, torch.Tensor | Unfinished]:
        """Do the next work; return the waveforms (num_samples,) float32 in [-1, 1] that it finished."""
        for request in inputs:
            if request.request_id not in self.scheduler:
                self.scheduler.add(
                    SynthesisRequest.from_engine(request.request_id, request.token_ids, request.information)
                )
        waveforms = self.scheduler.advance()
        return {request.request_id: waveforms.get(request.request_id, NOT_FINISHED) for request in inputs}

    def drop(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self.scheduler.drop(request_id)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        loaded: set[str] = AutoWeightsLoader(self).load_weights(weights, mapper=self.hf_to_vllm_mapper)
        return loaded
