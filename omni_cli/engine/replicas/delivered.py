"""Events already sent for a request that has to be rerun; the rerun sends only the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import msgspec
import numpy as np

from omni_cli.core.errors import OmniError
from omni_cli.requests.contents import ToolCallDelta
from omni_cli.requests.events import AudioChunk, Event, TextDelta
from omni_cli.requests.outputs import OutputReady


class Delivered:
    """Sent events. A rerun with the same seed must repeat them; otherwise the answer cannot be completed."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._calls: set[int] = set()
        self._num_logprobs = 0
        self._samples = np.zeros(0, np.float32)
        self._num_outputs = 0
        self.begin()

    def begin(self) -> None:
        """Note that the request starts over on another replica."""
        self._new_texts: dict[str, str] = {}
        self._new_logprobs = 0
        self._new_samples = np.zeros(0, np.float32)
        self._new_outputs = 0

    def rest(self, event: Event) -> Iterator[Event]:
        """Yield the unsent part of an event. Raises `OmniError` if it contradicts what was sent."""
        match event:
            case TextDelta():
                new = self._rest_of_text(event)
                if new.text or new.reasoning or new.tool_calls or new.logprobs:
                    yield new
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

    def _rest_of_text(self, event: TextDelta) -> TextDelta:
        calls = []
        for call in event.tool_calls:
            begins = call.index not in self._calls
            self._calls.add(call.index)
            arguments = self._unsent(f"call {call.index}", call.arguments)
            if begins or arguments:  # ids are random: the first one counts
                own = call if begins else ToolCallDelta(call.index)
                calls.append(dataclasses.replace(own, arguments=arguments))
        known = self._num_logprobs - self._new_logprobs
        self._new_logprobs += len(event.logprobs)
        self._num_logprobs = max(self._num_logprobs, self._new_logprobs)
        return msgspec.structs.replace(
            event,
            text=self._unsent("text", event.text),
            reasoning=self._unsent("reasoning", event.reasoning),
            tool_calls=tuple(calls),
            logprobs=event.logprobs[max(0, known) :],
        )

    def _unsent(self, what: str, piece: str) -> str:
        """Return what is new of a piece of one of an answer's texts."""
        sent, new = self._texts.get(what, ""), self._new_texts.get(what, "") + piece
        if not (new.startswith(sent) or sent.startswith(new)):
            raise _contradiction()
        self._new_texts[what], self._texts[what] = new, max(sent, new, key=len)
        return new[len(sent) :]


def _contradiction() -> OmniError:
    return OmniError(
        "the replica that started the answer ended, and another one answers differently", hint="send the request again"
    )
