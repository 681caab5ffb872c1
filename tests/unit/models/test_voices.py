"""OpenAI's voices, and the models' own speakers."""

from __future__ import annotations

import pytest

from omni_cli.core.errors import InputError
from omni_cli.models.csm import family as csm
from omni_cli.models.voices import note_on_voice, pick_speaker, speaker_for

SPEAKERS = ("chelsie", "ethan")


@pytest.mark.parametrize("voice", ["alloy", "Alloy", "nova", "cedar"])
def test_a_voice_is_always_the_same_speaker(voice: str) -> None:
    speaker = speaker_for(voice, SPEAKERS)
    assert speaker in SPEAKERS and speaker == speaker_for(voice.lower(), SPEAKERS)
    assert f"`{speaker}` speaks" in note_on_voice(voice, speaker)[0]


def test_a_speaker_is_itself() -> None:
    assert speaker_for("ethan", SPEAKERS) == "ethan" and speaker_for("ash", ("ash", "ethan")) == "ash"
    assert note_on_voice("Ethan", "ethan") == note_on_voice(None, "ethan") == ()


def test_speakers_of_qwen3_omni() -> None:
    assert pick_speaker(SPEAKERS, None) == "ethan"
    assert pick_speaker(("aiden",), None) == "aiden"
    assert pick_speaker(SPEAKERS, "Chelsie") == "chelsie"
    assert pick_speaker(SPEAKERS, "alloy") in SPEAKERS
    with pytest.raises(InputError, match="unknown speaker `Bob`"):
        pick_speaker(SPEAKERS, "Bob")


def test_a_family_may_have_no_speaker_to_prefer() -> None:
    assert pick_speaker(SPEAKERS, None, default=None) == "chelsie"


def test_speakers_of_csm() -> None:
    assert csm.pick_speaker(None) == "0" and csm.pick_speaker("17") == "17"
    assert csm.pick_speaker("alloy") in ("0", "1")
    with pytest.raises(InputError, match="unknown speaker `Bob`"):
        csm.pick_speaker("Bob")
