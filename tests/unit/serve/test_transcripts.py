"""Replies with a transcript, in the forms of OpenAI's strict clients."""

from __future__ import annotations

import io
import json

from fastapi import UploadFile
from openai.types.audio import TranscriptionDiarized

from omni_cli.requests.contents import Segment, Transcript
from omni_cli.requests.outputs import RequestResult, TextOutput
from omni_cli.serve.routes.transcriptions import _reply
from omni_cli.serve.schemas.speech import TranscriptionRequest


def test_a_diarized_transcript_has_the_parts_of_each_speaker() -> None:
    parts = (Segment(0.5, 1.25, " ships at sea", (), speaker="S01"), Segment(1.5, 2.0, " rain", (), speaker="S02"))
    text = TextOutput("[0.50][S01] ...", (1, 2), "stop", transcript=Transcript("en", 2.3456, parts))
    body = TranscriptionRequest.model_validate({"file": UploadFile(io.BytesIO()), "response_format": "diarized_json"})
    reply = json.loads(bytes(_reply(RequestResult("0", (text,), ()), body, "transcribe").body))
    TranscriptionDiarized.model_validate(reply, strict=True)
    assert reply == {
        "task": "transcribe",
        "duration": 2.346,
        "text": "ships at sea rain",
        "segments": [
            {"type": "transcript.text.segment", "id": "seg_0", "start": 0.5, "end": 1.25, "text": "ships at sea"}
            | {"speaker": "S01"},
            {"type": "transcript.text.segment", "id": "seg_1", "start": 1.5, "end": 2.0, "text": "rain"}
            | {"speaker": "S02"},
        ],
        "usage": {"type": "duration", "seconds": 3},
    }
