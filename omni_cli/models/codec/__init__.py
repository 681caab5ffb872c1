"""Parts of families with a codec: code predictors, decoders that stream, and the role of a codec's stage."""

from functools import partial

from omni_cli.config.families import StageRole

codec_role = partial(
    StageRole,
    kind="diffusion",
    backend="vllm",
    stage="omni_cli.models.codec.decoder_stage:CodecStage",
    makes="audio",
    settings="omni_cli.models.codec.settings:CodecConfig",
)
