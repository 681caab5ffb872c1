"""Token ids as text, and the probabilities of tokens by the engine and by its reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from omni_cli.config.schema import EngineConfig
from omni_cli.families import get_family_of_stages
from omni_cli.models.scores import EngineOutput, Expected
from omni_cli.verify.verdicts import Decode
from omni_cli.verify_record import TokenProbability


def make_decoder(folder: Path, config: EngineConfig) -> Decode:
    """Return a decoder of the stage that makes text, by the checkpoint's `tokenizer.json`."""
    family = get_family_of_stages(str(folder), config.stages)
    role = None if family is None else family.role(config.stages[0].name)
    path = folder / "tokenizer.json"
    if role is None or role.makes != "text" or not path.is_file():
        return lambda stage, token_ids: None
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))

    def decode(stage: str, token_ids: Sequence[int]) -> str | None:
        if stage != config.stages[0].name:
            return None
        text: str = tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    return decode


def get_probabilities(
    outputs: Sequence[EngineOutput], expected: Sequence[Expected | str], decode: Decode
) -> list[TokenProbability]:
    """Return the log-probability of every token by the engine and by the reference."""
    found = []
    for output, scores in zip(outputs, expected, strict=True):
        if isinstance(scores, str):
            continue
        for stage, tokens in output.tokens.items():
            if stage not in scores.scores:
                continue
            rows = zip(tokens.token_ids, tokens.logprobs[:, 0], scores.scores[stage].logprobs[:, 0], strict=False)
            for position, (token_id, engine, reference) in enumerate(rows):
                if math.isfinite(engine) and math.isfinite(reference):
                    found.append(
                        TokenProbability(
                            request=output.request.request_id,
                            stage=stage,
                            position=position,
                            token_id=int(token_id),
                            token=decode(stage, [int(token_id)]),
                            engine_logprob=float(engine),
                            reference_logprob=float(reference),
                            ratio=math.exp(min(float(reference - engine), 700.0)),
                        )
                    )
    return found
