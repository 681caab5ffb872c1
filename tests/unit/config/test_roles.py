"""A stage's class follows the checkpoint's family, even if that is known only when it loads."""

from __future__ import annotations

import pytest

from omni_cli.config.families import families
from omni_cli.config.loader import load_profile
from omni_cli.config.roles import for_family
from omni_cli.config.schema import ARStageConfig, DiffusionStageConfig
from omni_cli.core.errors import CheckpointError
from omni_cli.models.qwen2_5_omni.settings import Token2WavConfig

DROPPABLE = ("height", "width", "num_inference_steps", "true_cfg_scale")


def test_a_key_of_another_family_is_refused() -> None:
    config = load_profile("tiny-omni", ["talker.talker_prompt=plain"])
    talker = config.with_stages([config.stage("talker")])
    with pytest.raises(CheckpointError, match="is a language model, whose stage `talker` has no key `talker_prompt`"):
        for_family(talker, families()["language_model"])


def test_another_class_keeps_the_stages_values() -> None:
    config = load_profile("tiny-omni", ["talker.max_num_seqs=3", "talker.talker_prompt=null"])
    (stage,) = for_family(config.with_stages([config.stage("talker")]), families()["language_model"]).stages
    assert type(stage) is ARStageConfig
    assert (stage.name, stage.input, stage.max_num_seqs) == ("talker", "thinker", 3)
    assert stage.sampling == config.stage("talker").sampling
    image = load_profile("tiny-image", model="elsewhere").stage("image")
    assert type(image) is DiffusionStageConfig
    assert image.as_class(Token2WavConfig).droppable_arguments == image.droppable_arguments == DROPPABLE


def test_names_of_stages_lead_to_the_family_of_a_checkpoint_that_is_not_there() -> None:
    """So that a profile has no key that its checkpoint, once it is downloaded, refuses."""
    config = load_profile("qwen3-omni-30b-a3b", model="not/downloaded")
    assert for_family(config, families()["qwen3_omni"]) == config
    assert not hasattr(config.stage("talker"), "talker_prompt")
