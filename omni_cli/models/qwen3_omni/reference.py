"""transformers' Qwen3-Omni as the family's reference: thinker, talker with code predictor, and code2wav."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Qwen3OmniMoeForConditionalGeneration, Qwen3OmniMoeProcessor

from omni_cli.config.schema import EngineConfig
from omni_cli.models.forcing import ForcedCodes, ForcedTokens, led_by
from omni_cli.models.qwen2_5_omni.reference import Qwen2_5OmniReference, SpokenResult
from omni_cli.models.reference import get_limits, load_model, record_calls
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

    def speak(
        self,
        request: GenerateRequest,
        thinker: ForcedTokens | None = None,
        talker: ForcedTokens | None = None,
        codes: ForcedCodes | None = None,
    ) -> SpokenResult:
        """Return the spoken answer, with the ids of both stages and the frames of codes."""
        model, inputs = self.model, self.inputs(request)
        speakers = model.config.talker_config.speaker_id
        frames = (codes or ForcedCodes(())).leading(model.talker.code_predictor)
        with led_by(model.thinker, thinker), led_by(model.talker, talker), frames, record_calls(model.talker) as calls:
            sequences, waveform = model.generate(
                **inputs,
                **get_limits(self.config, "thinker", "thinker_"),
                **get_limits(self.config, "talker", "talker_"),
                speaker=pick_speaker([name.lower() for name in speakers], request.speech.speaker),
                thinker_eos_token_id=self._ends["eos_token_id"],
                thinker_do_sample=False,
                talker_do_sample=False,
            )
        ((_, generated),) = calls
        spoken = [step[-1][0].tolist() for step in generated.hidden_states if step[-1] is not None]
        return SpokenResult(
            tuple(sequences[0, inputs["input_ids"].shape[1] :].tolist()),
            tuple(generated.sequences[0].tolist()),
            waveform.reshape(-1).float().cpu().numpy(),
            tuple(map(tuple, spoken)),
        )

    @property
    def _ends(self) -> dict[str, Any]:
        return {"eos_token_id": self.processor.tokenizer.eos_token_id}
