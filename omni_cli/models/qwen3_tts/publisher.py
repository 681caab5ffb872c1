"""The publisher's package in a Python of its own: `python publisher.py FOLDER DTYPE ATTENTION IS_ROUGH`.

Each line of stdin names the files of a request and of its answer, both NumPy's; the answer's name is printed when it is
written. A request has the arguments of the package's call as JSON, the recording to clone, and the engine's tokens; an
answer has what was noted of them, the waveform of their frames, and the length of the talker's input.
"""

from __future__ import annotations

import contextlib
import json
import os
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
    from omni_cli.models.forcing import ForcedCodes, ForcedTokens, led_by

    core = model.model
    lengths: list[int] = []
    made: list[np.ndarray] = []
    generate = core.generate

    def note_codes(**options: Any) -> Any:
        result = generate(**options)
        made.extend(codes.cpu().numpy() for codes in result[0])
        return result

    def note_length(_module: Any, _args: Any, options: dict[str, Any]) -> None:
        rows = options.get("inputs_embeds")
        if not lengths and rows is not None:
            lengths.append(rows.shape[1])

    kinds = {"custom_voice": "generate_custom_voice", "voice_design": "generate_voice_design"}
    speaking = getattr(model, kinds.get(core.tts_model_type, "generate_voice_clone"))
    if "voice" in given:
        call["ref_audio"] = (given["voice"], int(given["rate"]))
    tokens = ForcedTokens(given["tokens"].tolist(), given["candidates"]) if "tokens" in given else None
    codes = ForcedCodes(given["codes"].tolist()) if "codes" in given else None
    leading = codes.leading(core.talker.code_predictor) if codes else contextlib.nullcontext()
    hook = core.talker.register_forward_pre_hook(note_length, with_kwargs=True)
    core.generate = note_codes
    try:
        with leading, led_by(core.talker, tokens):
            (waveform,), _ = speaking(**call, do_sample=False, subtalker_dosample=False)
    finally:
        hook.remove()
        del core.generate
    # Behind the recording's, whose end the package finds to a sample only.
    waveform = waveform[len(waveform) - len(made[0]) * SAMPLES_PER_FRAME :]
    notes = {**(tokens.notes if tokens else {}), **(codes.notes if codes else {})}
    return {**notes, "waveform": waveform, "frames": made[0], "num_input_tokens": np.array(lengths[0])}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # the package prints
    sys.path.insert(0, str(Path(__file__).parents[3]))
    folder, dtype, attention, is_rough = sys.argv[1:]
    model = load(folder, dtype, attention)
    for line in sys.stdin:
        question, answer = line.rstrip("\n").split("\t")
        with np.load(question) as file:
            given = dict(file)
        with contextlib.ExitStack() as stack:
            if is_rough == "rough":
                from omni_cli.models.rough_sums import RoughSums

                stack.enter_context(RoughSums())
            np.savez(answer, **speak(model, json.loads(str(given.pop("call"))), given))
        print(answer, file=answers)


if __name__ == "__main__":
    main()
