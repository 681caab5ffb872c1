"""Cloned voices over HTTP: saved ones and those of a request, each mistake with its own error."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from support.media_samples import tone
from support.omni_server import SPEECH, OmniServer

from omni_cli.requests.encoding import encode_wav

VOICES = "/v1/audio/voices"
FOUR = "Speaker 0: Hello.\nSpeaker 1: Good morning.\nSpeaker 2: It rains.\nSpeaker 3: Yes."
TEXT = "A day in May."
LIMITS = ("--profile", "tiny-vibevoice", "--set", "speaker.sampling.max_tokens=20", "--max-audio-seconds", "200")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("voices") / "kept"


@pytest.fixture(scope="module")
def server(start_server: Any, folder: Path) -> OmniServer:
    return start_server(*LIMITS, "--voices-dir", str(folder))


def wav(seed: int, rate: int = 24_000) -> bytes:
    return encode_wav(*tone(seed, rate))


def silence(seconds: float, rate: int = 8000) -> bytes:
    return encode_wav(np.zeros(int(seconds * rate), np.float32), rate)


def sent(recording: bytes) -> str:
    return base64.b64encode(recording).decode()


def upload(server: OmniServer, name: str = "anne", sample: bytes | None = None, **fields: str | None) -> httpx.Response:
    form = {"name": name, "consent": "she agrees", **fields}
    return httpx.post(
        f"{server.url}{VOICES}",
        data={key: value for key, value in form.items() if value is not None},
        files={"audio_sample": ("anne.wav", wav(0) if sample is None else sample)},
        timeout=60,
    )


def speak(server: OmniServer, text: str = TEXT, **fields: Any) -> bytes:
    answer = server.request("POST", SPEECH, {"input": text, "seed": 5, "response_format": "pcm", **fields})
    assert answer.status == 200, answer.body
    return answer.body


def refused(server: OmniServer, text: str = TEXT, **fields: Any) -> tuple[int, str, str | None]:
    error = (answer := server.request("POST", SPEECH, {"input": text, **fields})).error
    return answer.status, error["message"], error["param"]


@pytest.fixture
def anne(server: OmniServer) -> Any:
    """A saved voice of seed 0."""
    assert upload(server, ref_text="hello").status_code == 200
    yield
    assert server.request("DELETE", f"{VOICES}/anne").status == 200


def saved(server: OmniServer) -> list[dict[str, Any]]:
    voices = server.request("GET", VOICES).document["voices"]
    return [voice for voice in voices if voice.get("object") == "audio.voice"]


def test_a_saved_voice_speaks_like_its_recording(server: OmniServer, anne: None) -> None:
    own, cloned = speak(server), speak(server, voice="anne")
    assert cloned == speak(server, ref_audio=sent(wav(0))) != own
    assert cloned == speak(server, voice={"id": "anne"}) == speak(server, voice=["anne"])
    assert speak(server, ref_audio=sent(wav(1))) != cloned
    assert speak(server, voice="default") == own
    streamed = server.request(
        "POST", SPEECH, {"input": TEXT, "seed": 5, "voice": "anne", "stream_format": "audio", "response_format": "pcm"}
    )
    assert np.abs(np.frombuffer(streamed.body, np.int16).astype(int) - np.frombuffer(cloned, np.int16)).max() <= 4


def test_the_error_of_an_unknown_voice_lists_those_that_there_are(server: OmniServer, anne: None) -> None:
    message = "unknown speaker `nobody`: there are 0, 1, 2, 3, anne"
    assert refused(server, voice="nobody") == (400, message, "voice")


def test_the_official_client_speaks_with_it(server: OmniServer, anne: None) -> None:
    speech = server.client().audio.speech.create(
        model="tiny-vibevoice", input=TEXT, voice="anne", response_format="wav", extra_body={"seed": 5}
    )
    samples, rate = soundfile.read(io.BytesIO(speech.content), dtype="int16")
    assert rate == 24_000 and samples.tobytes() == speak(server, voice="anne")


def test_the_list_and_the_answer_name_it(server: OmniServer) -> None:
    made = upload(server, "Bob-1_x", ref_text="the words").json()
    assert made == {
        "id": "Bob-1_x", "object": "audio.voice", "name": "Bob-1_x", "created_at": made["created_at"],
        "consent": "she agrees", "ref_text": "the words", "seconds": 0.5,
    }  # fmt: skip
    assert saved(server) == [made]
    deleted = server.request("DELETE", f"{VOICES}/Bob-1_x")
    assert deleted.document == {"id": "Bob-1_x", "object": "audio.voice.deleted", "deleted": True}
    assert saved(server) == []
    gone = server.request("DELETE", f"{VOICES}/Bob-1_x")
    assert gone.status == 404 and gone.error["code"] == "voice_not_found"
    assert refused(server, voice="Bob-1_x")[:2] == (
        400,
        "unknown speaker `Bob-1_x` (this model's speakers are 0, 1, 2, 3)",
    )


def test_several_speakers_with_several_voices(server: OmniServer, anne: None) -> None:
    recordings = [sent(wav(seed, 24_000)) for seed in range(4)]
    spoken = {speak(server, FOUR, ref_audio=recordings[:count]) for count in (1, 2, 4)}
    spoken |= {speak(server, FOUR), speak(server, FOUR, ref_audio=recordings[::-1])}
    assert len(spoken) == 5, "each is another sound"
    assert upload(server, "bob", wav(1)).status_code == 200
    both = speak(server, FOUR, voice=["anne", "bob"])
    assert server.request("DELETE", f"{VOICES}/bob").status == 200
    assert both == speak(server, FOUR, ref_audio=recordings[:2])


def test_recordings_by_url_and_of_other_rates(server: OmniServer) -> None:
    low = wav(0, 16_000)
    expected = speak(server, ref_audio=sent(low))
    assert expected == speak(server, ref_audio=f"data:audio/wav;base64,{sent(low)}")
    note = "the audio in `ref_audio` was resampled from 16000 Hz to the model's 24000 Hz"
    server.wait_until(lambda: any(note in line.get("notes", ()) for line in server.log("request")))
    status, message, param = refused(server, ref_audio="https://voices.example/anne.wav")
    assert (status, param) == (400, "ref_audio") and "is not a URL that this server fetches" in message


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"ref_audio": ""}, "ref_audio", "`ref_audio` is empty"),
        ({"ref_audio": "data:audio/wav;base64,"}, "ref_audio", "`ref_audio` is empty"),
        ({"ref_audio": "no base64!"}, "ref_audio", "`ref_audio` is not valid base64"),
        ({"ref_audio": sent(b"no sound at all")}, "ref_audio", "cannot read the audio in `ref_audio`"),
        ({"ref_audio": sent(silence(1))}, "ref_audio", "the audio in `ref_audio` has no sound"),
        ({"ref_audio": sent(silence(0.05))}, "ref_audio", "the audio in `ref_audio` is shorter than 0.1 s"),
        ({"ref_audio": sent(silence(3600, 1000))}, "ref_audio", "the audio in `ref_audio` is longer than 120 s"),
        ({"ref_audio": sent(wav(0)), "voice": "1"}, "ref_audio", "`voice` and `ref_audio` both choose the voice"),
        ({"ref_audio": [sent(wav(0))] * 2}, None, "2 recordings of voices, and 1 speaker"),
        ({"ref_audio": [sent(wav(0))] * 5}, "ref_audio", "5 recordings of voices, and this model has at most 4"),
        ({"ref_text": "hello"}, "ref_text", "`ref_text` is the text of a recording, which is missing"),
        ({"ref_audio": sent(wav(0)), "ref_text": "hello"}, "ref_text", "it clones a voice from its sound alone"),
        ({"ref_audio": 3}, "ref_audio", "`ref_audio`"),
        ({"voice": ["0", "1"]}, "voice", "`voice` has several names: each must be a saved voice"),
        ({"voice": "nobody"}, None, "unknown speaker `nobody`"),
        ({"input": "Speaker 7: hello"}, None, "unknown speaker `7`"),
        ({"input": "Speaker 1: a\nSpeaker 2: b", "voice": "1"}, None, "a text with turns names its speakers itself"),
    ],
)  # fmt: skip
def test_a_mistake_in_the_voice_of_a_request(
    server: OmniServer, fields: dict[str, Any], param: str | None, message: str
) -> None:
    status, said, named = refused(server, **fields)
    assert status == 400 and message in said and named == param


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "", " ", ".x", "a" * 65, "a\0b", "é", "%2e%2e"])
def test_a_name_that_leaves_the_folder_is_refused(server: OmniServer, folder: Path, name: str) -> None:
    answer = upload(server, name)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "name"
    assert [path.name for path in folder.iterdir()] == [".omni-voices"] and len(list(folder.parent.iterdir())) == 1


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"name": "2"}, "name", "`2` is the name of a voice that this model has"),
        ({"name": "Alloy"}, "name", "`Alloy` is the name of a voice that this model has"),
        ({"name": "default"}, "name", "is the name of a voice that this model has"),
        ({"name": "ANNE"}, "name", "a voice `ANNE` exists"),
        ({"consent": None}, "consent", "field `consent` is missing"),
        ({"consent": "false"}, "consent", "`consent`: must say that the speaker agrees"),
        ({"consent": "x" * 300}, "consent", "`consent`"),
        ({"ref_text": ""}, "ref_text", "`ref_text`"),
        ({"sample": b""}, "audio_sample", "the audio in `audio_sample` is empty (0 bytes)"),
        ({"sample": silence(1)}, "audio_sample", "`audio_sample` has no sound (use some seconds of speech)"),
        ({"sample": silence(3600, 1000)}, "audio_sample", "the audio in `audio_sample` is longer than 120 s"),
        ({"conscent": "yes"}, "conscent", "did you mean `consent`?"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_upload(
    server: OmniServer, anne: None, fields: dict[str, Any], param: str, message: str
) -> None:
    answer = upload(server, **{"name": "carl", **fields})
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"] and answer.json()["error"]["param"] == param
    assert [voice["id"] for voice in saved(server)] == ["anne"]


def test_a_recording_that_is_too_large(server: OmniServer) -> None:
    answer = upload(server, "carl", bytes(10 * 2**20 + 1))
    assert answer.status_code == 413 and "`audio_sample` is larger than 10 MiB" in answer.text


def test_a_restart_finds_the_voices(start_server: Any, tmp_path: Path, server: OmniServer) -> None:
    first = start_server(*LIMITS, "--voices-dir", str(tmp_path / "kept"))
    made = upload(first, "anne", wav(3, 8000)).json()
    cloned = speak(first, voice="anne")
    assert first.stop().code in (0, 130)
    second = start_server(*LIMITS, "--voices-dir", str(tmp_path / "kept"))
    assert saved(second) == [made] and speak(second, voice="anne") == cloned
    (tmp_path / "kept" / "anne.voice.wav").unlink()
    lost = second.request("POST", SPEECH, {"input": TEXT, "voice": "anne"})
    assert lost.status == 500 and "the recording of the voice `anne` cannot be read" in lost.error["message"]
    assert upload(second, "carl", None).status_code == 200, "it goes on"


def test_a_model_that_does_not_clone(omni: OmniServer) -> None:
    answer = upload(omni, "anne")
    assert (
        answer.status_code == 404
        and "does not clone voices; profiles that do: tiny-higgs-audio, tiny-vibevoice" in answer.text
    )
    status, message, param = refused(omni, ref_audio=sent(wav(0)))
    assert (status, param) == (400, "ref_audio") and "does not clone voices" in message


def test_a_server_without_a_folder(start_server: Any) -> None:
    keeps_none = start_server(*LIMITS)
    for answer in (upload(keeps_none), httpx.delete(f"{keeps_none.url}{VOICES}/anne", timeout=60)):
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "voices_not_kept")
        assert "start it with `--voices-dir DIR`" in error["message"]
    assert speak(keeps_none, ref_audio=sent(wav(0)))
