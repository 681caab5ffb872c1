"""The publisher's package as the family's reference, in a Python of its own."""

from __future__ import annotations

import pickle
import subprocess
from pathlib import Path
from typing import Any

from omni_cli.checkpoints.derive import read_config
from omni_cli.config.schema import EngineConfig
from omni_cli.models.qwen3_tts import publisher
from omni_cli.models.qwen3_tts.spoken import CLONES, language_name, read_request
from omni_cli.models.reference import SpokenText, get_limits
from omni_cli.models.scores import EngineOutput, Expected, NoReferenceError, TokenScores, Way
from omni_cli.models.voices import text_to_speak
from omni_cli.requests.outputs import GenerateRequest


class Qwen3TTSReference:
    """Greedy, with the profile's limits unless tokens are given. Its process ends with this one."""

    # The other process adds its own.
    has_kernels_of_stage = True

    def __init__(self, folder: Path, config: EngineConfig, way: Way, python: str) -> None:
        if way.low_memory:
            raise NoReferenceError("`--low-memory` is not for a reference in a Python of its own")
        self._config, self._stage = config, config.stages[0].name
        self._checkpoint = read_config(folder)
        rough = "rough" if way.rough_sums else "plain"
        command = [python, publisher.__file__, str(folder), way.dtype, way.attention, rough]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __del__(self) -> None:
        if hasattr(self, "_process"):
            self._process.kill()
            self._process.wait()

    def expected(self, output: EngineOutput) -> Expected:
        engine = output.tokens[self._stage]
        given = {"tokens": engine.token_ids, "candidates": engine.candidates, "codes": engine.codes or ()}
        spoken, notes = self._ask(output.request, given)
        return spoken.expected(self._config, output, TokenScores(**notes))

    def speak(self, request: GenerateRequest) -> SpokenText:
        return self._ask(request, {})[0]

    def _ask(self, request: GenerateRequest, given: dict[str, Any]) -> tuple[SpokenText, dict[str, Any]]:
        """Return the package's speech, and what it notes of `given` tokens, by the names of `TokenScores`."""
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None and answers is not None
        try:
            pickle.dump((self._call(request), given), questions)
            questions.flush()
            spoken, notes = pickle.load(answers)
        except (BrokenPipeError, EOFError):
            why = f"the publisher's package ended with exit code {self._process.wait()}"
            raise NoReferenceError(why) from None
        return SpokenText(**spoken), notes

    def _call(self, request: GenerateRequest) -> dict[str, Any]:
        """Return the arguments of the package's call. Raises `InputError` as the stage does."""
        talker = self._config.stage(self._stage)
        spoken = read_request(self._checkpoint, request, getattr(talker, "system_prompt", None))
        limits = get_limits(self._config, self._stage)
        call: dict[str, Any] = {
            "text": text_to_speak(request)[1],
            "language": language_name(request.transcription.language),
            **{name: value for name, value in limits.items() if name != "min_new_tokens"},
        }
        if (text_first := getattr(talker, "text_first", None)) is not None:
            call["non_streaming_mode"] = text_first
        if self._checkpoint["tts_model_type"] == CLONES:
            (voice,) = request.speech.voices
            call["ref_audio"] = voice.samples, voice.sample_rate
            return {**call, "ref_text": voice.text or None, "x_vector_only_mode": not voice.text}
        return {**call, "instruct": spoken.instruction, **({"speaker": spoken.speaker} if spoken.speaker else {})}
