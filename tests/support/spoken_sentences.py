"""Twenty English sentences, spoken by espeak-ng."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

SENTENCES = (
    "What is the capital of France?",
    "The train to the city leaves at seven in the morning.",
    "Please close the window before you go home.",
    "My brother bought three apples and a loaf of bread.",
    "It has been raining since yesterday afternoon.",
    "She reads a book every week.",
    "The red house on the hill is very old.",
    "Can you tell me where the station is?",
    "We will meet again next summer.",
    "The children played in the garden all day.",
    "He forgot his keys on the kitchen table.",
    "Water boils at one hundred degrees.",
    "I would like a cup of coffee with milk.",
    "The doctor said that everything is fine.",
    "There are seven days in a week.",
    "Turn left at the second street.",
    "The music was too loud for me.",
    "They have lived in this town for twenty years.",
    "The ship crossed the ocean in nine days.",
    "Do not forget to water the flowers.",
)


def has_espeak() -> bool:
    return shutil.which("espeak-ng") is not None


def speak(text: str, path: Path) -> Path:
    """Write the speech of a text to a WAV file."""
    subprocess.run(["espeak-ng", "-w", str(path), text], check=True)
    return path
