"""transformers' Qwen3-Omni as the family's reference: thinker, talker with code predictor, and code2wav."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from transformers import Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeProcessor

from omni_cli.config.schema import EngineConfig
from omni_cli.models.forcing import ForcedCodes
from omni_cli.models.qwen2_5_omni.reference import Qwen2_5OmniReference
from omni_cli.models.reference import load_model
from omni_cli.models.scores import Way
from omni_cli.models.transcription.reference import prompted_inputs, read_prompts
from omni_cli.models.voices import pick_speaker
from omni_cli.requests.outputs import GenerateRequest


class Qwen3OmniReference(Qwen2_5OmniReference):
    """Greedy, with the limits of the profile's sampling settings unless tokens are given."""

    MIN_SPOKEN = 0

    def __init__(self, folder: Path, config: EngineConfig, way: Way) -> None:
        self.config, self._way = config, way
        self._prompts = read_prompts(folder, config)
        self.processor = Qwen3OmniMoeProcessor.from_pretrained(folder)
        self.model = load_model(Qwen3OmniMoeForConditionalGeneration, folder, way, config)
        self._load_adapters()
        # transformers 5.19 reads the audio encoder's window from the talker's configuration, which has none.
        if self.model.has_talker:
            self.model.talker.config.audio_config = self.model.config.thinker_config.audio_config

    def process_request(self, request: GenerateRequest) -> Any:
        if request.transcription.asked:
            return prompted_inputs(self.processor, self._prompts, request)
        return super().process_request(request)

    def _call(self, request: GenerateRequest, inputs: Any) -> dict[str, Any]:
        speakers = [name.lower() for name in self.model.config.talker_config.speaker_id]
        speaker = pick_speaker(speakers, request.speech.speaker)
        return {**inputs, "speaker": speaker, "thinker_eos_token_id": self._ends["eos_token_id"]}

    def _leading(self, request: GenerateRequest, codes: ForcedCodes) -> AbstractContextManager[None]:
        return codes.leading(self.model.talker.code_predictor)

    def _read_talker(self, arguments: dict[str, Any], spoken: Any) -> dict[str, Any]:
        frames = tuple(tuple(step[-1][0].tolist()) for step in spoken.hidden_states if step[-1] is not None)
        return {"tokens": tuple(spoken.sequences[0].tolist()), "codes": frames}

    @property
    def _ends(self) -> dict[str, Any]:
        return {"eos_token_id": self.processor.tokenizer.eos_token_id}
