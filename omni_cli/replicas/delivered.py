"""Events already sent for a request that has to be rerun; the rerun sends only the rest."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from omni_cli.errors import OmniError
from omni_cli.outputs import AudioChunk, Event, OutputReady, TextDelta


class Delivered:
    """Sent events. A rerun with the same seed must repeat them; otherwise the answer cannot be completed."""

    def __init__(self) -> None:
        self._text = ""
        self._samples = np.zeros(0, np.float32)
        self._num_outputs = 0
        self.begin()

    def begin(self) -> None:
        """Note that the request starts over on another replica."""
        self._new_text = ""
        self._new_samples = np.zeros(0, np.float32)
        self._new_outputs = 0

    def rest(self, event: Event) -> Iterator[Event]:
        """Yield the unsent part of an event. Raises `OmniError` if it contradicts what was sent."""
        match event:
            case TextDelta():
                self._new_text += event.text
                if not (self._new_text.startswith(self._text) or self._text.startswith(self._new_text)):
                    raise _contradiction()
                new, self._text = self._new_text[len(self._text) :], max(self._text, self._new_text, key=len)
                if new:
                    yield TextDelta(event.request_id, new)
            case AudioChunk():
                known, began = len(self._samples), len(self._new_samples)
                self._new_samples = np.concatenate([self._new_samples, event.samples])
                both = min(known, len(self._new_samples))
                if not np.array_equal(self._new_samples[began:both], self._samples[began:both]):
                    raise _contradiction()
                new_samples = self._new_samples[known:]
                if len(new_samples):
                    self._samples = self._new_samples
                    yield AudioChunk(event.request_id, new_samples, event.sample_rate)
            case OutputReady():
                self._new_outputs += 1
                if self._new_outputs > self._num_outputs:
                    self._num_outputs = self._new_outputs
                    yield event
            case _:
                yield event


def _contradiction() -> OmniError:
    return OmniError(
        "the replica that started the answer ended, and another one answers differently", hint="send the request again"
    )
