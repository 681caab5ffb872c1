# Alternating between the two trees, with PYTHONPATH set to the tree and to the packages:
python benchmarks/gpu/omni_checkpoint.py /root/seven   # once
python benchmarks/gpu/images.py -o images.json --only small
python benchmarks/gpu/chain.py qwen2.5-omni -o . --model /root/seven --stream both --clients 1 8 --rounds 5
python -m pytest tests/gpu -m gpu
