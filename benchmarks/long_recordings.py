"""Long recordings: the text of `omni generate` against that of transformers' long form, with the same Whisper.

    python benchmarks/long_recordings.py --model DIR SOUND.wav...

One line per recording: its seconds, whether the text is the same, its words, the tokens that were written (also those
that a next window writes again), and the seconds that transformers took. The exit code is 1 if a text differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

# Scripts have their own folder on the path, and omni_cli may not be installed.
sys.path.insert(1, str(Path(__file__).resolve().parent.parent))

from omni_cli.core.compat.libraries import prepare_libraries  # isort: skip

prepare_libraries()

from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

from omni_cli.requests.encoding import resample
from omni_cli.requests.media.reading import load_audio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("sounds", type=Path, nargs="+", metavar="SOUND")
    options = parser.parse_args()
    processor = AutoProcessor.from_pretrained(options.model)
    model = AutoModelForSpeechSeq2Seq.from_pretrained(options.model).eval()
    ends = {model.generation_config.eos_token_id}
    are_same = True
    for path in options.sounds:
        command = [sys.executable, "-m", "omni_cli", "generate", "--model", str(options.model), "--json", "-q"]
        ended = subprocess.run([*command, "--audio", str(path)], capture_output=True, text=True, check=True)
        (output,) = json.loads(ended.stdout)["results"][0]["outputs"]
        samples, rate = load_audio(path, lambda _note: None, max_s=7200)
        samples = resample(samples, rate, 16_000)
        form = {"truncation": False, "padding": "longest"} if len(samples) > 480_000 else {}
        inputs = processor(samples, sampling_rate=16_000, return_tensors="pt", return_attention_mask=True, **form)
        began_s = time.monotonic()
        segments = model.generate(**inputs, return_timestamps=True, return_segments=True, do_sample=False)["segments"]
        took_s = time.monotonic() - began_s
        words = [token for part in segments[0] for token in part["tokens"].tolist()]
        said = processor.tokenizer.decode(words, skip_special_tokens=True).strip()
        is_same = said == output["text"].strip()
        are_same &= is_same
        heard = len([token for token in output["token_ids"] if token not in ends])
        verdict = "equal" if is_same else "DIFFERENT"
        facts = f"{len(said.split())} words, {heard} tokens, transformers {took_s:.1f} s"
        sys.stdout.write(f"{path.name}: {len(samples) / 16_000:.0f} s, {verdict}, {facts}\n")
    return int(not are_same)


if __name__ == "__main__":
    sys.exit(main())
