"""The family as data. Imports nothing heavy: omni-cli reads it for every command that loads a profile."""

from omni_cli.config.families import Family, StageRole

WRITER, PAINTER = "ToyChain", "ToyPainter"

FAMILY = Family(
    name="toy",
    title="Toy",
    architectures=(WRITER,),
    roles=(
        StageRole(
            name="writer",
            kind="ar",
            backend="vllm",
            stage="omni_toy.stages:WriterStage",
            makes="text",
            needed_files=(("tokenizer.json",),),
        ),
        StageRole(
            name="painter",
            kind="diffusion",
            backend="vllm",
            stage="omni_toy.stages:PainterStage",
            input="writer",
            makes="image",
            settings="omni_toy.settings:PainterConfig",
        ),
    ),
    vllm_models={WRITER: "omni_toy.models:ToyWriter", PAINTER: "omni_toy.models:ToyPainter"},
    builtins={"tiny-toy": "omni_toy.builder:build"},
    profile="omni_toy.profile:derive_stages",
)
