"""The word error rate of a speech recognition model on twenty sentences that espeak-ng speaks.

python benchmarks/word_error_rate.py FOLDER    # such as that of scripts/whisper_tiny.py; needs espeak-ng and jiwer
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import jiwer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from support.spoken_sentences import SENTENCES, speak


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    words = jiwer.Compose(
        [jiwer.ToLowerCase(), jiwer.RemovePunctuation(), jiwer.Strip(), jiwer.ReduceToListOfListOfWords()]
    )
    with tempfile.TemporaryDirectory() as temporary:
        files = [speak(text, Path(temporary, f"{number}.wav")) for number, text in enumerate(SENTENCES)]
        lines = [json.dumps({"audio": str(file)}) for file in files]
        requests = Path(temporary, "requests.jsonl")
        requests.write_text("\n".join(lines))
        command = ["omni", "generate", "--model", str(folder), "--requests", str(requests), "--json", "-q"]
        document = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=temporary).stdout)
    heard = [result["outputs"][0]["text"] for result in document["results"]]
    for said, text in zip(SENTENCES, heard, strict=True):
        sys.stdout.write(f"{said:<60} {text.strip()}\n")
    rate = jiwer.wer(list(SENTENCES), heard, reference_transform=words, hypothesis_transform=words)
    sys.stdout.write(f"{folder.name}: word error rate {rate:.1%}, {len(SENTENCES)} sentences\n")


if __name__ == "__main__":
    main()
