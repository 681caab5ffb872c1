"""A module in each mode, on real models of diffusers and transformers without a GPU."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from support.fake_graphs import FakeBackend

from omni_cli.core.compat.torchvision import ensure_torchvision_importable

ensure_torchvision_importable()

from diffusers import FirstBlockCacheConfig, QwenImageTransformer2DModel, UNet2DConditionModel  # noqa: E402

from omni_cli.backends.execution.fusion import fuse_gelu  # noqa: E402
from omni_cli.backends.execution.modes import (  # noqa: E402
    CompiledGraphMode,
    CompiledMode,
    GraphMode,
    make_execution_mode,
    repeated_blocks,
)
from omni_cli.core.errors import StageError  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def transformer() -> QwenImageTransformer2DModel:
    torch.manual_seed(0)
    return QwenImageTransformer2DModel(
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        axes_dims_rope=(4, 6, 6),
    ).eval()


def unet(*, attention: bool = True) -> UNet2DConditionModel:
    torch.manual_seed(0)
    kind = "CrossAttn" if attention else ""
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(16, 32),
        layers_per_block=1,
        down_block_types=(f"{kind}DownBlock2D",) * 2,
        up_block_types=(f"{kind}UpBlock2D",) * 2,
        mid_block_type="UNetMidBlock2DCrossAttn" if attention else None,
        cross_attention_dim=24,
        attention_head_dim=8,
        norm_num_groups=8,
    ).eval()


def text(length: int, seed: int) -> torch.Tensor:
    return torch.randn(1, length, 24, generator=torch.Generator().manual_seed(seed))


def denoise(transformer, steps: int = 3, return_dict: bool = False) -> list[torch.Tensor]:
    """Classifier-free guidance as in QwenImagePipeline: two branches per step, texts of unlike lengths."""
    latents = torch.randn(1, 16, 16, generator=torch.Generator().manual_seed(1))
    seen = []
    for step in range(steps):
        for branch, embeds in (("cond", text(7, 2)), ("uncond", text(4, 3))):
            with torch.no_grad(), transformer.cache_context(branch):
                out = transformer(
                    hidden_states=latents,
                    timestep=torch.full((1,), 1 - step / steps),
                    encoder_hidden_states=embeds,
                    encoder_hidden_states_mask=None,
                    img_shapes=[[(1, 4, 4)]],
                    attention_kwargs={},
                    return_dict=return_dict,
                )
            seen.append(out.sample if return_dict else out[0])
        latents = latents + 0.1 * (seen[-2] - seen[-1])
    return seen


def graphed(module, max_graphs: int = 8) -> GraphMode:
    return GraphMode(module, FakeBackend(), stage="image", device=CPU, max_graphs=max_graphs)


@pytest.mark.parametrize("return_dict", [False, True])
def test_both_branches_of_guidance_have_their_graph_and_their_values(transformer, return_dict):
    expected = denoise(transformer, return_dict=return_dict)
    execution_mode = graphed(transformer)
    made = denoise(transformer, return_dict=return_dict)
    assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
    counters = execution_mode.counters
    assert (counters.graphs_captured, counters.graph_replays, counters.eager_calls) == (2, 6, 0)


def test_a_unet_s_timestep_is_contents_as_a_tensor_and_a_new_graph_each_as_a_number():
    model = unet()
    latents, embeds = torch.randn(2, 4, 8, 8), torch.cat([text(5, 0), text(5, 1)])
    with torch.no_grad():
        expected = [model(latents, step, encoder_hidden_states=embeds).sample for step in range(3)]
        execution_mode = graphed(model, max_graphs=2)
        made = [model(latents, torch.tensor(step), encoder_hidden_states=embeds).sample for step in range(3)]
        assert all(torch.equal(a, b) for a, b in zip(made, expected, strict=True))
        assert execution_mode.counters.graphs_captured == 1
        with pytest.raises(StageError, match=r"`timestep` \(1, then 2\)"):
            for step in range(3):
                model(latents, step, encoder_hidden_states=embeds)


def test_hooks_and_names_of_weights_stay_and_close_gives_the_module_back(transformer):
    names, calls = set(transformer.state_dict()), []
    hook = transformer.register_forward_pre_hook(lambda *_: calls.append(1))
    own = transformer.forward
    execution_mode = graphed(transformer)
    assert set(transformer.state_dict()) == names
    denoise(transformer, steps=2)
    assert len(calls) == 4
    execution_mode.close()
    hook.remove()
    assert "forward" not in vars(transformer) and transformer.forward == own
    assert len(execution_mode.graphs) == 0


def test_an_already_replaced_forward_is_restored(transformer):
    class_forward = transformer.forward
    transformer.forward = lambda *args, **kwargs: class_forward(*args, **kwargs)
    before = transformer.forward
    execution_mode = graphed(transformer)
    assert transformer.forward is not before
    execution_mode.close()
    assert transformer.forward is before


def test_eager_counts_calls_and_leaves_no_hook(transformer):
    expected = denoise(transformer)
    execution_mode = make_execution_mode(transformer, "eager", stage="image", device="cpu")
    assert all(torch.equal(a, b) for a, b in zip(denoise(transformer), expected, strict=True))
    assert execution_mode.counters.eager_calls == 6
    execution_mode.close()
    denoise(transformer)
    assert execution_mode.counters.eager_calls == 6 and not transformer._forward_hooks


def test_a_cache_that_decides_in_each_step_is_refused(transformer, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    transformer.enable_cache(FirstBlockCacheConfig())
    with pytest.raises(StageError, match="cannot capture QwenImageTransformer2DModel with a cache of diffusers"):
        make_execution_mode(transformer, "cudagraph", stage="image", device="cuda")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what the test says that it lacks")
def test_cudagraph_without_cuda_is_an_error(transformer, device):
    with pytest.raises(StageError) as caught:
        make_execution_mode(transformer, "cudagraph", stage="image", device=device)
    assert caught.value.message.endswith("`execution: cudagraph` needs a CUDA device, and this machine has none")


def test_blocks_to_compile_are_those_declared_or_the_largest_list_of_equal_parts(transformer):
    assert repeated_blocks(transformer) == list(transformer.transformer_blocks)
    assert {type(block).__name__ for block in repeated_blocks(unet())} == {"BasicTransformerBlock"}
    # Nothing declared is in it: its own lists hold blocks of one class each.
    assert repeated_blocks(torch.nn.Linear(2, 2)) == []
    layers = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    norms = torch.nn.ModuleList([torch.nn.LayerNorm(2), torch.nn.LayerNorm(2)])
    assert repeated_blocks(torch.nn.ModuleDict({"a": norms, "b": layers})) == list(layers)


@pytest.mark.slow
def test_compiled_blocks_are_compiled_once_and_give_nearly_the_same(transformer):
    # torch counts compilations of a piece of code for the whole process: those of other tests are not this one's.
    torch.compiler.reset()
    expected = denoise(transformer)
    execution_mode = make_execution_mode(transformer, "compile", stage="image", device="cpu")
    made = denoise(transformer)
    assert max((a - b).abs().max().item() for a, b in zip(made, expected, strict=True)) < 1e-5
    counters = execution_mode.counters
    assert (counters.compiled_regions, counters.eager_calls) == (2, 0)
    # Once for the first block, whose inputs are views of other tensors, and once for the rest.
    assert 1 <= counters.compiled_graphs <= 2 and counters.recompiles == counters.compiled_graphs - 1
    assert counters.compile_s > 0
    compiled = counters.as_dict()
    denoise(transformer)
    assert counters.as_dict() == compiled
    execution_mode.close()
    assert all(torch.equal(a, b) for a, b in zip(denoise(transformer), expected, strict=True))


class TwoSums(torch.nn.Module):
    def forward(self, a, b):
        return a.sum(0), b.sum(0)


def code_that_runs(monkeypatch, sizes, **compile_options) -> list[int]:
    """The numbers of the compiled programs in which calls with inputs of these sizes run."""
    ran, programs = [], []

    def compiler(graph, inputs):
        programs.append(graph)
        number = len(programs)

        def run(*args):
            ran.append(number)
            return graph(*args)

        return run

    plain = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda call, **keys: plain(call, **keys | {"backend": compiler, **compile_options})
    )
    torch.compiler.reset()
    module = TwoSums()
    execution_mode = CompiledMode(module, stage="image")
    for a, b in sizes:
        module(torch.ones(a), torch.ones(b))
    execution_mode.close()
    return ran


def test_the_first_call_compiles_for_all_sizes_also_if_two_of_its_own_are_equal(monkeypatch):
    assert code_that_runs(monkeypatch, [(4, 4), (6, 3), (4, 4), (2, 9)]) == [1, 1, 1, 1]


def test_a_call_runs_in_the_code_that_it_first_ran_in_whatever_was_compiled_since(monkeypatch):
    # Compiled for the first size only, the second call compiles for all sizes, which the first code's is one of.
    sizes = [(4, 4), (6, 6), (4, 4), (8, 8), (4, 4), (6, 6)]
    assert code_that_runs(monkeypatch, sizes, dynamic=None) == [1, 2, 1, 2, 1, 2]


def test_a_graph_over_compiled_blocks_holds_the_compiled_code(transformer, monkeypatch):
    # Traced as for any other backend, but without the time of a C++ compiler.
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    expected = denoise(transformer)
    execution_mode = CompiledGraphMode(transformer, FakeBackend(), stage="image", device=CPU, max_graphs=4)
    made = denoise(transformer)
    assert max((a - b).abs().max().item() for a, b in zip(made, expected, strict=True)) < 1e-5
    counters = execution_mode.counters
    # Two lengths of text, so two graphs. The fake's replays compile again, for inference mode.
    assert (counters.graphs_captured, counters.graph_replays, counters.eager_calls) == (2, 6, 0)
    assert counters.compiled_regions == 2 and counters.compiled_graphs >= 1
    weights = {weight.untyped_storage()._cdata for weight in transformer.transformer_blocks.parameters()}
    seen = {storage._cdata for graph in execution_mode.graphs._graphs.values() for storage in graph.external}
    assert seen and not seen & weights, "the blocks ran as single operations"
    with execution_mode.eagerly():
        assert all(torch.equal(a, b) for a, b in zip(denoise(transformer), expected, strict=True))
    execution_mode.use("compile")
    compiled = denoise(transformer)
    assert max((a - b).abs().max().item() for a, b in zip(compiled, expected, strict=True)) < 1e-5
    assert (counters.graph_replays, counters.eager_calls) == (6, 0)
    execution_mode.use("eager")
    assert all(torch.equal(a, b) for a, b in zip(denoise(transformer), expected, strict=True))
    assert (counters.graph_replays, counters.eager_calls) == (6, 6)
    execution_mode.use("compile_cudagraph")
    assert all(torch.equal(a, b) for a, b in zip(denoise(transformer), made, strict=True))
    assert (counters.graphs_captured, counters.graph_replays, counters.eager_calls) == (2, 12, 6)
    execution_mode.close()
    assert (
        not transformer._forward_hooks
        and "forward" not in vars(transformer)
        and "forward" not in vars(transformer.transformer_blocks[0])
    )
    assert all(torch.equal(a, b) for a, b in zip(denoise(transformer), expected, strict=True))


class CannotCapture(FakeBackend):
    def capture(self, run):
        raise RuntimeError("not while capturing")


def test_graphs_that_nobody_asked_for_end_with_the_first_failed_capture(transformer, monkeypatch, caplog):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    expected = denoise(transformer)
    execution_mode = CompiledGraphMode(transformer, CannotCapture(), stage="image", device=CPU, max_graphs=4)
    with pytest.raises(StageError, match="not while capturing"):
        denoise(transformer)
    execution_mode.choose("compile_cudagraph", "a compiled call takes 15 ms, 15 ms of it on the host")
    made = denoise(transformer)
    assert max((a - b).abs().max().item() for a, b in zip(made, expected, strict=True)) < 1e-5
    assert execution_mode.execution == "compile" and "not while capturing" in execution_mode.reason
    assert [record.message for record in caplog.records if "from now on it runs compiled" in record.message]
    counters = execution_mode.counters
    assert (counters.graph_replays, counters.eager_calls) == (0, 0)
    execution_mode.close()


def test_a_module_beside_is_compiled_too(transformer, monkeypatch):
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    second = copy.deepcopy(transformer)
    expected = denoise(second)
    execution_mode = CompiledMode(transformer, stage="video", beside=(second,))
    made = denoise(second)
    assert max((a - b).abs().max().item() for a, b in zip(made, expected, strict=True)) < 1e-5
    assert execution_mode.counters.compiled_regions == 4 and execution_mode.counters.compiled_graphs >= 1
    compiled = execution_mode.counters.compiled_graphs
    execution_mode.use("eager")
    assert all(torch.equal(a, b) for a, b in zip(denoise(second), expected, strict=True))
    execution_mode.close()
    denoise(second)
    assert execution_mode.counters.compiled_graphs == compiled and "forward" not in vars(second)


def test_a_whole_module_is_compiled_too_or_runs_eagerly_if_that_fails(transformer, monkeypatch, caplog):
    compilers: list[object] = []

    def compiler(graph, _inputs):
        compilers.append(graph)
        if len(compilers) > 1:
            raise NotImplementedError("no code for this")
        return graph

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=compiler))
    torch.compiler.reset()
    good, bad = FeedForward(), FeedForward().double()
    execution_mode = CompiledMode(transformer, stage="image")
    for module in (good, bad):
        x = torch.randn(2, 4, dtype=module.up.weight.dtype)
        expected = module(x)
        execution_mode.compile_whole(module)
        assert torch.equal(module(x), expected) and torch.equal(module(x), expected)
    assert len(compilers) == 2 and "cannot compile FeedForward" in caplog.text
    assert execution_mode.counters.compiled_regions == 3, "two blocks and the good one"
    execution_mode.use("eager")
    assert torch.equal(good(x.float()), good(x.float())) and len(compilers) == 2
    execution_mode.close()
    assert "forward" not in vars(good) and "forward" not in vars(bad)


def test_a_call_without_memory_leaves_a_whole_module_compiled(transformer, monkeypatch, caplog):
    calls: list[str] = []

    def compiled(_: object) -> str:
        calls.append("compiled")
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return "compiled"

    execution_mode, module = CompiledMode(transformer, stage="image"), FeedForward()
    monkeypatch.setattr(torch, "compile", lambda *_, **__: compiled)
    execution_mode.compile_whole(module)
    with pytest.raises(torch.OutOfMemoryError):
        module(torch.zeros(2, 4))
    assert module(torch.zeros(2, 4)) == "compiled" and not caplog.records
    execution_mode.close()


class Breaks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.proj = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.proj(x) * float(x.sum().item() > 0 and len(str(x.max().item())))


@pytest.mark.slow
def test_code_that_cannot_be_compiled_is_named_in_the_error():
    module = Breaks()
    execution_mode = make_execution_mode(module, "compile", stage="image", device="cpu")
    assert execution_mode.counters.compiled_regions == 1, "all of it, since nothing repeats"
    with pytest.raises(StageError) as caught:
        module(torch.ones(2, 3))
    assert "`execution: compile` cannot compile Breaks: " in caught.value.message
    assert "test_modes.py:" in caught.value.message and "x.sum().item()" in caught.value.message
    assert caught.value.hint == "--set image.execution=eager" and caught.value.details
    execution_mode.close()
    assert module(torch.ones(2, 3)).shape == (2, 3)


class FeedForward(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(4, 16), torch.nn.Linear(16, 4)

    def forward(self, x, approximate="tanh"):
        return self.down(torch.nn.functional.gelu(self.up(x), approximate=approximate))


@pytest.mark.parametrize(("approximate", "fused"), [("tanh", 1), ("none", 0)])
def test_a_gelu_behind_a_linear_layer_becomes_part_of_its_product(approximate, fused):
    found = []

    def compiler(graph, _inputs):
        found.append(fuse_gelu(graph))
        graph.recompile()
        return graph

    module = FeedForward()
    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    torch.compiler.reset()
    with torch.no_grad():
        expected = module(x, approximate)
        made = torch.compile(module, backend=compiler)(x, approximate)
    assert found == [fused]
    # torch computes the approximation on CUDA only, and the exact function on a CPU.
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-3 if fused else 0)


def test_a_gelu_behind_a_quantized_layer_stays():
    torchao = pytest.importorskip("torchao.quantization")
    module = FeedForward().requires_grad_(False)
    torchao.quantize_(module, torchao.Int8WeightOnlyConfig(set_inductor_config=False))
    found = []
    torch.compiler.reset()
    with torch.inference_mode():
        torch.compile(module, backend=lambda graph, _: found.append(fuse_gelu(graph)) or graph)(torch.randn(3, 4))
    assert found == [0]
