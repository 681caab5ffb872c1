"""Ten recordings of 20 s to 20 min, and of an hour, that espeak-ng speaks, with the words that are said."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
import soundfile

from omni_cli.requests.encoding import encode_audio, resample

RATE = 16_000
_TEXT = Path(__file__).resolve().parent.parent / "LICENSE"
_CHORDS = ((220.0, 277.2, 329.6), (196.0, 246.9, 293.7), (174.6, 220.0, 261.6))


@dataclass(frozen=True)
class Recording:
    """Speech of about `minutes`, sentence by sentence in turn by `voices`, from a sentence of the text on.

    `gap` after every few sentences is of silence or music; `under` is the level of music or noise below the speech.
    """

    name: str
    minutes: float
    voices: tuple[str, ...]
    first: int = 0
    words_per_minute: int = 160
    gap: str = ""
    gap_s: float = 0.0
    under: str = ""
    under_level: float = 0.0

    def make(self, folder: Path) -> tuple[Path, str]:
        """Write the recording as WAV; return its path and its words."""
        rng, said, parts, num_samples = np.random.default_rng(len(self.name)), [], [], 0
        voices = cycle(self.voices)
        for number, sentence in enumerate(_sentences(self.first)):
            speech = _speak(sentence, next(voices), self.words_per_minute)
            if num_samples + len(speech) > self.minutes * 60 * RATE:
                break
            parts += [speech, np.zeros(int(rng.uniform(0.1, 0.8) * RATE))]
            if self.gap and number % 6 == 4:
                parts.append(_sound(self.gap, int(self.gap_s * RATE), rng) * (0.2 if self.gap == "music" else 0.003))
            said.append(sentence)
            num_samples = sum(map(len, parts))
        samples = np.concatenate(parts)
        if self.under:
            samples = samples + self.under_level * _sound(self.under, len(samples), rng)
        path = folder / f"{self.name}.wav"
        soundfile.write(path, samples.astype(np.float32), RATE)
        return path, " ".join(said)


RECORDINGS = (
    Recording("20 s, one voice", 1 / 3, ("en-us",)),
    Recording("45 s, a woman", 0.75, ("en-us+f3",), 10),
    Recording("90 s, two voices", 1.5, ("en-us", "en-gb+f2"), 20),
    Recording("2 min, silences of 35 s", 2.0, ("en-us",), 30, gap="silence", gap_s=35),
    Recording("3 min, music between", 3.0, ("en-gb",), 5, gap="music", gap_s=20),
    Recording("3 min, music below", 3.0, ("en-us+m3",), 15, under="music", under_level=0.02),
    Recording("4 min, noise below", 4.0, ("en-us",), 25, under="silence", under_level=0.01),
    Recording("5 min, fast", 5.0, ("en-gb", "en-us+f4"), 2, words_per_minute=220),
    Recording("10 min, slow", 10.0, ("en-us",), 0, words_per_minute=130),
    Recording("20 min, all of it", 20.0, ("en-us", "en-gb+f3", "en-us+m2"), 0, 160, "music", 8, "silence", 0.003),
)
HOUR = Recording("an hour", 60.0, ("en-us", "en-gb+f3"))


def read_samples(path: Path) -> np.ndarray:
    samples: np.ndarray = soundfile.read(path, dtype="float32")[0]
    return samples


def _sentences(first: int) -> Iterator[str]:
    words = re.sub(r"[^A-Za-z.,;:' \n]", " ", _TEXT.read_text())
    pieces = [re.sub(r"\s+", " ", piece).strip() for piece in re.split(r"[.;:]\s", words)]
    usable = [piece for piece in pieces if len(piece.split()) > 3 and "www" not in piece]
    yield from cycle([*usable[first % len(usable) :], *usable[: first % len(usable)]])


def _speak(text: str, voice: str, words_per_minute: int) -> np.ndarray:
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["espeak-ng", "-v", voice, "-s", str(words_per_minute), "-w", file.name, text], check=True)
        samples, rate = soundfile.read(file.name, dtype="float32")
    return resample(samples, rate, RATE)


def _sound(kind: str, num_samples: int, rng: np.random.Generator) -> np.ndarray:
    """Return chords of two seconds each, or the noise of a quiet room, of amplitude about 1."""
    if kind != "music":
        return rng.standard_normal(num_samples)
    times_s = np.arange(num_samples) / RATE
    tones = np.array(_CHORDS)[(times_s / 2).astype(int) % len(_CHORDS)]
    return sum(np.sin(2 * np.pi * tone * times_s) for tone in tones.T) / 3 * np.exp(-(times_s % 2))


def to_mp3(path: Path) -> Path:
    """Write a recording again as MP3 of 64 kbit/s; return its path."""
    samples, rate = soundfile.read(path, dtype="float32")
    path = path.with_suffix(".mp3")
    path.write_bytes(encode_audio(samples, rate, "mp3"))
    return path
