# With PYTHONPATH set to the tree and to the packages. image: builtin:tiny-image with a transformer of 16 layers, 12 heads of 128.
python benchmarks/power_turns.py
I="--profile tiny-image --model image --set dtype=bfloat16 --set image.height=1024 --set image.width=1024 --set image.num_inference_steps=20"
python benchmarks/energy.py -o energy_image.json -- $I --num-iters 12
for name in a b; do python -m omni_cli bench $I --set image.execution=cudagraph --time-budget 20 --output-json $name.json; done
python -m omni_cli compare a.json b.json --max-regression 10%
python benchmarks/gpu/omni_checkpoint.py seven
VLLM_USE_FLASHINFER_SAMPLER=0 python benchmarks/energy.py --seconds 5 -- --profile qwen2.5-omni-7b --model seven --input-len 64 --output-len 128 --num-iters 8
