"""The publisher's package in a Python of its own: `python publisher.py FOLDER DTYPE ATTENTION IS_ROUGH`.

Requests come on stdin, and answers go to stdout, by pickle: the arguments of the package's call, the recording to clone
and the engine's tokens; what was noted of these, the waveform of their frames, and the length of the talker's input.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import transformers  # noqa: F401 - it looks for the packages below while it is imported

SAMPLES_PER_FRAME = 1920


def load(folder: str, dtype: str, attention: str) -> Any:
    """Load a checkpoint without the packages that only the 25 Hz tokenizer needs."""
    for name in ("torchaudio", "torchaudio.compliance", "torchaudio.compliance.kaldi", "sox", "onnxruntime"):
        module = sys.modules[name] = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    kind: Any = import_module("qwen_tts").Qwen3TTSModel
    return kind.from_pretrained(folder, dtype=getattr(torch, dtype), attn_implementation=attention)


def speak(model: Any, call: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Call the package, led through the tokens and codes of `given` if it has any; greedy."""
    from omni_cli.models.forcing import ForcedCodes, ForcedTokens, led_by, replace_attribute

    core = model.model
    lengths: list[int] = []
    made: list[np.ndarray] = []
    generate = core.generate

    def note_codes(**options: Any) -> Any:
        result = generate(**options)
        made.extend(codes.cpu().numpy() for codes in result[0])
        return result

    def note_length(_module: Any, _args: Any, options: dict[str, Any]) -> None:
        if options.get("inputs_embeds") is not None:
            lengths.append(options["inputs_embeds"].shape[1])

    kinds = {"custom_voice": "generate_custom_voice", "voice_design": "generate_voice_design"}
    speaking = getattr(model, kinds.get(core.tts_model_type, "generate_voice_clone"))
    tokens = ForcedTokens(given["tokens"], given["candidates"]) if "tokens" in given else None
    codes = ForcedCodes(given.get("codes", ()))
    hook = core.talker.register_forward_pre_hook(note_length, with_kwargs=True)
    leading = codes.leading(core.talker.code_predictor)
    with leading, led_by(core.talker, tokens), replace_attribute(core, "generate", note_codes):
        (waveform,), _ = speaking(**call, do_sample=False, subtalker_dosample=False)
    hook.remove()
    # Behind the recording's, whose end the package finds to a sample only.
    waveform = waveform[len(waveform) - len(made[0]) * SAMPLES_PER_FRAME :]
    notes = {**(tokens.notes if tokens else {}), **codes.notes}
    return {**notes, "waveform": waveform, "frames": made[0], "num_input_tokens": lengths[0]}


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # the package prints
    sys.path.insert(0, str(Path(__file__).parents[3]))
    folder, dtype, attention, is_rough = sys.argv[1:]
    model = load(folder, dtype, attention)
    with contextlib.ExitStack() as stack:
        if is_rough == "rough":
            from omni_cli.models.rough_sums import RoughSums

            stack.enter_context(RoughSums())
        questions: Any = sys.stdin.buffer
        while questions.peek(1):
            pickle.dump(speak(model, *pickle.load(questions)), answers)
            answers.flush()


if __name__ == "__main__":
    main()
