"""A stage samples with its own seed where the profile names one, and reports it where the request has another."""

from __future__ import annotations

from typing import Any

from omni_cli.requests.outputs import GenerateRequest


def test_a_request_whose_seed_was_not_used_has_a_note(start_engine: Any) -> None:
    engine = start_engine("tiny-omni", "thinker.sampling.seed=7")

    def ask(seed: int, temperature: float = 1.0) -> Any:
        sampling = {"temperature": temperature, "max_tokens": 8}
        request = GenerateRequest(
            f"{seed}-{temperature}", prompt="hello", seed=seed, sampling=sampling, modalities=frozenset({"text"})
        )
        return engine.run(request)

    one, two = ask(1), ask(2)
    assert one.outputs[0].token_ids == two.outputs[0].token_ids
    (note,) = one.notes
    assert note == "the seed 7 of stage `thinker` (`sampling.seed`) was used, not that of the request"
    assert ask(7).notes == ask(3, temperature=0.0).notes == ()
