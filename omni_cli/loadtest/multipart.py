"""Bodies of requests that send a sound as a file."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping

import numpy as np

from omni_cli.encoding import encode_wav

_BOUNDARY = uuid.uuid4().hex
CONTENT_TYPE = f"multipart/form-data; boundary={_BOUNDARY}"


def with_sound(fields: Mapping[str, object], samples: np.ndarray, sample_rate: int) -> bytes:
    """Return fields, and float32 mono samples (num_samples,) as the WAV file `file`, as a body of `CONTENT_TYPE`."""
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    parts = [
        f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode()
        for name, text in texts.items()
    ]
    head = f'--{_BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="sound.wav"\r\n'
    file = head.encode() + b"Content-Type: audio/wav\r\n\r\n" + encode_wav(samples, sample_rate)
    return b"".join([*parts, file, f"\r\n--{_BOUNDARY}--\r\n".encode()])
