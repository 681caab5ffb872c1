#!/usr/bin/env bash
# Expected: a WAV or AIFF file behind an ID3v2 tag has the samples of the file without it, as libsndfile reads the tag.
# Happens: libsndfile 1.2.2 skips the tag, and leaves out as many bytes at the end of the sound: half a second per
#   16 KiB of a tag at 16 kHz and 16 bits. Nothing is raised or logged. FLAC behind a tag is whole.
# Source: seen by reading files of 1,000 samples with python-soundfile. Versions: soundfile 0.14.0 (libsndfile 1.2.2).
# Why users care: recorders and taggers write such tags, and the last words of a recording are missing in whatever reads
#   them by soundfile (datasets, vLLM's audio loader): without the tag, or in FLAC, they are there.
# Exit code: 0 as described, 1 if the output is another one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet soundfile==0.14.0 numpy==2.3.5
"$folder/venv/bin/python" - <<'PYTHON' | tee "$folder/seen"
import io

import numpy
import soundfile

print("soundfile", soundfile.__version__, "libsndfile", soundfile.__libsndfile_version__)
sound = (numpy.arange(1000) / 2000).astype("float32")
for kind in ("WAV", "AIFF", "FLAC"):
    file = io.BytesIO()
    soundfile.write(file, sound, 16_000, format=kind, subtype="PCM_16")
    for padding in (0, 100, 1000):
        size = bytes(padding >> shift & 127 for shift in (21, 14, 7, 0))
        tag = b"ID3\x04\x00\x00" + size + bytes(padding) if padding else b""
        samples, _ = soundfile.read(io.BytesIO(tag + file.getvalue()))
        print(kind, "behind", len(tag), "bytes:", len(samples), "of 1000 samples")
PYTHON
diff "$folder/seen" - <<'EXPECTED' || exit 1
soundfile 0.14.0 libsndfile 1.2.2
WAV behind 0 bytes: 1000 of 1000 samples
WAV behind 110 bytes: 945 of 1000 samples
WAV behind 1010 bytes: 495 of 1000 samples
AIFF behind 0 bytes: 1000 of 1000 samples
AIFF behind 110 bytes: 945 of 1000 samples
AIFF behind 1010 bytes: 495 of 1000 samples
FLAC behind 0 bytes: 1000 of 1000 samples
FLAC behind 110 bytes: 1000 of 1000 samples
FLAC behind 1010 bytes: 1000 of 1000 samples
EXPECTED
