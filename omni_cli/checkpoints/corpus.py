"""Training text of the small tokenizers, with enough made-up words to fill a larger vocabulary."""

from __future__ import annotations

import itertools

# Words that must be single tokens are frequent here: the roles of the chat template, and the fixed instruction before
# every prompt of Qwen-Image, from which diffusers drops a fixed number of tokens.
ROLES = "system\nuser\nassistant\n"
IMAGE_INSTRUCTION = (
    "Describe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships "
    "of the objects and background:"
)

_SENTENCES = """
Hello, and welcome! How are you today? I am fine, thank you, and you?
You are a helpful assistant. You listen to what people say and look at what they show.
What do you hear in this recording? I hear rain on the roof and a dog that barks far away.
What do you see in this picture? I see a red house, a green field and a small boat on a blue lake.
Please tell me a short story about the sea. Once upon a time there was a ship with white sails.
The weather is warm and the sky is clear. In the evening the wind comes from the north.
Can you count to ten? One, two, three, four, five, six, seven, eight, nine, ten.
A bird sings in the tree before the sun comes up, and the town is still asleep.
Where is the train to the city? It leaves at noon, and it takes two hours and thirty minutes.
Could you say that again, a little more slowly? Of course; here it is once more, word for word.
My friend plays the piano, her brother plays the drums, and both of them sing well.
The quick answer is yes. The long answer needs more time, more paper and a cup of tea.
A model reads some words, thinks about them and then speaks with a clear and friendly voice.
Write a poem about winter: snow falls on the hill, the river is still, the night is long.
In the kitchen there is bread, butter, cheese, an apple, a lemon and some cold water.
The numbers are 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and then 10, 20, 50, 100 and 1000.
A photo of a cat on a chair. A drawing of a mountain at sunset. A painting of a quiet street.
Does this work? If it does not, please write what happened, what you did and what you expected.
"""

_ONSETS = [*"bcdfghklmnprstvwz", "br", "cl", "dr", "fl", "gr", "pl", "st", "tr"]
_VOWELS = [*"aeiou", "ai", "ea", "ou"]
_CODAS = [*"nrstlm", "nd", "st"]


def training_text(num_words: int) -> list[str]:
    """Lines to train on: real words, then `num_words` made-up ones to fill a large vocabulary."""
    lines = [ROLES + IMAGE_INSTRUCTION] * 8 + [ROLES] * 8 + _SENTENCES.strip().splitlines() * 2
    syllables = [f"{onset}{vowel}" for onset, vowel in itertools.product(_ONSETS, _VOWELS)]
    for index in range(num_words):
        lap, position = divmod(index, len(syllables))
        second = syllables[(position + lap * 37) % len(syllables)]
        lines.append(f" {syllables[position]}{second}{_CODAS[lap % len(_CODAS)]}")
    return lines
