"""The words that a Whisper hears in ten recordings of 20 s to 20 min that espeak-ng speaks, and in twenty sentences.

    python benchmarks/word_error_rate.py FOLDER    # such as that of scripts/whisper_tiny.py; needs espeak-ng

One line per recording: its seconds, whether `omni generate` writes the tokens of transformers' long form, window by
window, and the word error rates of both. Last those of all recordings together, and that of the sentences, spoken one
by one. The exit code is 1 if a token differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Scripts have their own folder on the path, and omni_cli may not be installed.
ROOT = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(ROOT), str(ROOT / "tests")]

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

from spoken_recordings import RATE, RECORDINGS, read_samples
from support.spoken_sentences import SENTENCES, speak
from transformers import WhisperForConditionalGeneration, WhisperProcessor
from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

from omni_cli.measure.bench.quality import count_word_errors
from omni_cli.records.metrics import WER, WORDS


class LongForm:
    """transformers' long form."""

    def __init__(self, folder: Path) -> None:
        self.processor: Any = WhisperProcessor.from_pretrained(folder)
        self.model: Any = WhisperForConditionalGeneration.from_pretrained(folder).eval()
        self._run_window = self.model.generate_with_fallback
        self.model.generate_with_fallback = self._note
        self._windows: list[list[int]] = []

    def _note(self, **given: Any) -> Any:
        outputs = self._run_window(**given)
        self._windows.append(outputs[1][0][given["decoder_input_ids"].shape[1] :].tolist())
        return outputs

    def hear(self, path: Path) -> tuple[list[int], str]:
        """The tokens of all windows, also those that a next one hears again, and the text."""
        samples = read_samples(path)
        form = {"truncation": False, "padding": "longest"} if len(samples) > 30 * RATE else {}
        inputs = self.processor(samples, sampling_rate=RATE, return_tensors="pt", return_attention_mask=True, **form)
        self._windows = []
        made = self.model.generate(**inputs, return_timestamps=True, return_segments=True)["segments"][0]
        words = [token for part in made for token in part["tokens"].tolist()]
        text: str = self.processor.tokenizer.decode(words, skip_special_tokens=True)
        return [token for window in self._windows for token in window], text


def hear_with_omni(folder: Path, paths: Sequence[Path]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as temporary:
        requests = Path(temporary, "requests.jsonl")
        requests.write_text("\n".join(json.dumps({"audio": str(path)}) for path in paths))
        options = ["--model", str(folder), "--requests", str(requests), "--json", "-q"]
        command = [sys.executable, "-m", "omni_cli", "generate", *options]
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=temporary)
    return [result["outputs"][0] for result in json.loads(ended.stdout)["results"]]


def count_errors(said: str, heard: str) -> dict[str, float]:
    normalise = EnglishTextNormalizer({})
    return count_word_errors(normalise(said).split(), normalise(heard).split())


def rate(counts: Sequence[dict[str, float]]) -> str:
    return f"{sum(each[WER] * each[WORDS] for each in counts) / sum(each[WORDS] for each in counts):.1%}"


def main() -> int:
    folder = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as temporary:
        sentences = [speak(text, Path(temporary, f"{number}.wav")) for number, text in enumerate(SENTENCES)]
        spoken = [recording.make(Path(temporary)) for recording in RECORDINGS]
        began_s = time.monotonic()
        ours = hear_with_omni(folder, [path for path, _ in spoken])
        took_s = {"omni, all at once": time.monotonic() - began_s, "transformers": 0.0}
        reference, mine, theirs, are_equal = LongForm(folder), [], [], True
        for (path, said), output in zip(spoken, ours, strict=True):
            began_s = time.monotonic()
            tokens, text = reference.hear(path)
            took_s["transformers"] += time.monotonic() - began_s
            is_equal = tokens == output["token_ids"]
            are_equal &= is_equal
            mine.append(count_errors(said, output["text"]))
            theirs.append(count_errors(said, text))
            verdict = f"{len(tokens)} tokens {'equal' if is_equal else 'DIFFERENT'}"
            rates = f"word error rate {rate(mine[-1:])}, of transformers {rate(theirs[-1:])}"
            seconds = len(read_samples(path)) / RATE
            sys.stdout.write(f"{path.stem:<24} {seconds:6.1f} s  {verdict:<22} {rates}\n")
            sys.stdout.flush()
        sys.stdout.write(f"all: word error rate {rate(mine)}, of transformers {rate(theirs)}\n")
        sys.stdout.write(", ".join(f"{side} {seconds:.0f} s" for side, seconds in took_s.items()) + "\n")
        heard = hear_with_omni(folder, sentences)
    each = [count_errors(said, output["text"]) for said, output in zip(SENTENCES, heard, strict=True)]
    sys.stdout.write(f"{len(SENTENCES)} sentences: word error rate {rate(each)}\n")
    return int(not are_equal)


if __name__ == "__main__":
    sys.exit(main())
