"""transformers' Qwen2.5-Omni as the family's reference: thinker, talker and token2wav of one `generate`."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2_5OmniForConditionalGeneration, Qwen2_5OmniProcessor

from omni_cli.checkpoints.adapters import ADAPTER_WEIGHTS
from omni_cli.checkpoints.files import read_header
from omni_cli.config.schema import ARStageConfig, EngineConfig
from omni_cli.models.forcing import ForcedCodes, ForcedTokens, led_by, record_calls, replace_attribute
from omni_cli.models.qwen2_5_omni.settings import TalkerConfig
from omni_cli.models.reference import (
    SpokenText,
    as_samples,
    get_device,
    get_limits,
    load_adapters,
    load_model,
    noise_in,
    processor_inputs,
    use_adapter,
)
from omni_cli.models.scores import EngineOutput, Expected, NoReferenceError, Way
from omni_cli.models.voices import pick_speaker
from omni_cli.requests.outputs import GenerateRequest


class Qwen2_5OmniReference:
    """Greedy, with the limits of the profile's sampling settings unless tokens are given."""

    # transformers cannot speak a shorter answer: it has no reply row to put after the prompt.
    MIN_SPOKEN = 2
    takes_adapters = True

    def __init__(self, folder: Path, config: EngineConfig, way: Way) -> None:
        self.config, self._way = config, way
        self.processor: Any = Qwen2_5OmniProcessor.from_pretrained(folder)
        self.model: Any = load_model(Qwen2_5OmniForConditionalGeneration, folder, way, config)
        self._load_adapters()
        talker = config.stages_by_name.get("talker")
        if isinstance(talker, TalkerConfig) and talker.talker_prompt == "full":
            self._keep_mask()

    def expected(self, output: EngineOutput) -> Expected:
        thinker = ForcedTokens.of(output.tokens["thinker"])
        if "talker" not in output.tokens:
            self.answer(output.request, thinker)
            return Expected({"thinker": thinker.scores}, num_input_tokens=self.num_input_tokens)
        if len(thinker.token_ids) < self.MIN_SPOKEN:
            raise NoReferenceError("transformers cannot speak an answer of a single token")
        tokens = output.tokens["talker"]
        talker, codes = ForcedTokens.of(tokens), ForcedCodes(tokens.codes or ())
        spoken = self.speak(output.request, thinker, talker, codes)
        talker_scores = talker.scores if tokens.codes is None else codes.added_to(talker.scores)
        return spoken.expected(self.config, output, thinker.scores, talker_scores)

    def answer(self, request: GenerateRequest, tokens: ForcedTokens | None = None) -> tuple[int, ...]:
        """Return the ids of a text answer without speech."""
        inputs, limits = self.inputs(request), get_limits(self.config, "thinker")
        with torch.no_grad(), led_by(self.model.thinker, tokens):
            output = self.model.thinker.generate(**inputs, do_sample=False, **limits, **self._ends)
        return tuple(output[0, inputs["input_ids"].shape[1] :].tolist())

    def speak(
        self,
        request: GenerateRequest,
        thinker: ForcedTokens | None = None,
        talker: ForcedTokens | None = None,
        codes: ForcedCodes | None = None,
    ) -> SpokenText:
        """Return the spoken answer; `tokens` are the talker's, and `codes` the frames of all but the last."""
        model, inputs = self.model, self.inputs(request)
        with (
            led_by(model.thinker, thinker),
            led_by(model.talker, talker),
            self._leading(request, codes or ForcedCodes(())),
            record_calls(model.talker) as calls,
        ):
            answer, waveform = model.generate(
                **self._call(request, inputs),
                **get_limits(self.config, "thinker", "thinker_"),
                **get_limits(self.config, "talker", "talker_"),
                thinker_do_sample=False,
                talker_do_sample=False,
            )
        ((arguments, spoken),) = calls
        return SpokenText(
            as_samples(waveform),
            self.num_input_tokens,
            **self._read_talker(arguments, spoken),
            answer=tuple(answer[0, self.num_input_tokens :].tolist()),
        )

    def _call(self, request: GenerateRequest, inputs: Any) -> dict[str, Any]:
        """Return the arguments of `generate` that are the family's own."""
        config = self.model.config.talker_config
        # Only the thinker looks at pixels; without the prefix the talker is given them too, and refuses.
        for name in inputs.keys() & {"pixel_values", "pixel_values_videos"}:
            inputs[f"thinker_{name}"] = inputs.pop(name)
        keys = {"num_steps": "num_inference_steps", **{key: key for key in ("guidance_scale", "sway_coefficient")}}
        token2wav = self.config.stages_by_name.get("token2wav")
        denoising = {f"token2wav_{name}": getattr(token2wav, key, None) for name, key in keys.items()}
        return {
            **inputs,
            **{name: value for name, value in denoising.items() if value is not None},
            "speaker": pick_speaker(list(self.model.speaker_map), request.speech.speaker, default=None),
            "talker_eos_token_id": [config.tts_codec_pad_token_id, config.tts_codec_end_token_id],
            "use_audio_in_video": False,
        }

    def _read_talker(self, arguments: dict[str, Any], spoken: Any) -> dict[str, Any]:
        """Return the fields of a `SpokenText` from a call of the talker's `generate`."""
        return {"tokens": tuple(spoken[0, arguments["input_ids"].shape[1] :].tolist())}

    def _load_adapters(self) -> None:
        """Load the thinker's adapters. Raises `NoReferenceError` for one with the checkpoint's names of modules."""
        for adapter in self._thinker.adapters:
            names = read_header(adapter.path / ADAPTER_WEIGHTS)
            if any(name.startswith("base_model.model.thinker.") for name in names):
                raise NoReferenceError(f"the adapter `{adapter.name}` is not one of transformers' thinker class")
        load_adapters(self.model.thinker, self._thinker)

    @property
    def _thinker(self) -> ARStageConfig:
        stage = self.config.stages[0]
        assert isinstance(stage, ARStageConfig)
        return stage

    @property
    def _ends(self) -> dict[str, Any]:
        """The thinker's end token, as an argument of `generate`, where its generation config lacks it."""
        return {}

    def inputs(self, request: GenerateRequest) -> Any:
        if request.text.reply is not None:
            raise NoReferenceError("its text is given, and not an answer")
        inputs = self.process_request(request).to(get_device())
        use_adapter(self.model.thinker, self._thinker, request)
        self.num_input_tokens = inputs["input_ids"].shape[1]
        return inputs.to(self.model.dtype)

    def process_request(self, request: GenerateRequest) -> Any:
        """Return the processor's inputs for a request."""
        return processor_inputs(self.processor, request, self._thinker.system_prompt)

    def _leading(self, request: GenerateRequest, codes: ForcedCodes) -> AbstractContextManager[None]:
        """Make what follows the talker's tokens the engine's: token2wav's noise, in float32, from the request's seed.

        transformers runs token2wav in float32 whatever the type of the model. In a wider way it is widened, too.
        """
        forward, is_wide = self.model.token2wav.forward, self._way.dtype == "float64"

        def seed_and_run(*args: Any, **kwargs: Any) -> torch.Tensor:
            torch.manual_seed(request.seed)
            if is_wide:
                self.model.token2wav.double()
                args = tuple(map(_widen, args))
                kwargs = {name: _widen(value) for name, value in kwargs.items()}
            with noise_in(torch.float32, on_host=True):
                result: torch.Tensor = forward(*args, **kwargs)
            return result

        return replace_attribute(self.model.token2wav, "forward", seed_and_run)

    def _keep_mask(self) -> None:
        """Pass the attention mask on to the talker, as for any padded batch: that is `talker_prompt: full`.

        transformers 5.19 drops an attention mask of ones on the way to the talker, which then skips the codec
        embeddings of its prompt and M-RoPE.
        """
        prepare = self.model.talker.prepare_inputs_for_generation

        # generate looks at its parameters to see what it may pass.
        @functools.wraps(prepare)
        def with_mask(input_ids: torch.Tensor, **kwargs: Any) -> dict[str, Any]:
            prepared: dict[str, Any] = prepare(input_ids, **kwargs)
            prepared["attention_mask"] = torch.ones_like(input_ids)
            return prepared

        self.model.talker.prepare_inputs_for_generation = with_mask


def _widen(value: object) -> object:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
