"""The work of `chain_throughput.py`, the same for both sides: eight prompts, a fixed number of tokens each."""

from __future__ import annotations

from dataclasses import dataclass, field

PROFILE = "small-omni"
STAGES = ("thinker", "talker", "token2wav")
CHAIN = "chain"
TEXT_TOKENS = 64
CODEC_TOKENS = 128
REPETITION_PENALTY = 1.05

PROMPTS = (
    "hello",
    "Tell me a story about the rain on a tin roof, and then another one.",
    "What is the capital of France?",
    "Count from one to twenty, slowly, and say why the numbers come in this order.",
    "Why is the sky blue in the day and red in the evening?",
    "Say something kind.",
    "How do I bake bread without an oven, when all I have is a pan, a lid and a camp fire?",
    "Which is heavier, a kilogram of feathers or a kilogram of iron?",
)


@dataclass(frozen=True)
class RequestWork:
    """Output of one request."""

    text_token_ids: tuple[int, ...]
    codec_token_ids: tuple[int, ...]
    num_samples: int

    @property
    def size(self) -> tuple[int, int, int]:
        """Quantities that must be equal for the times to be comparable."""
        return len(self.text_token_ids), len(self.codec_token_ids), self.num_samples


@dataclass(frozen=True)
class Round:
    """Seconds of the chain and of each stage for all requests, and the results."""

    seconds: dict[str, float] = field(default_factory=dict)
    work: tuple[RequestWork, ...] = ()


def overrides() -> list[str]:
    """`--set` options that fix the work.

    No token may end the text early. The codec tokens need no lower limit: a talker with random weights does not hit
    one of its two end tokens among 1088, and the script compares the sizes that were reached.
    """
    return [
        f"thinker.sampling.max_tokens={TEXT_TOKENS}",
        f"thinker.sampling.min_tokens={TEXT_TOKENS}",
        f"talker.sampling.max_tokens={CODEC_TOKENS}",
        f"talker.sampling.repetition_penalty={REPETITION_PENALTY}",
    ]
