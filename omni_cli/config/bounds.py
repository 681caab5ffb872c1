"""Bounds of values that several inputs share: profiles, options, request files, HTTP. Imports nothing."""

MIN_SEED, MAX_SEED = -(2**63), 2**64 - 1  # of torch's generators
MAX_NUMPY_SEED = 2**32 - 1  # of NumPy's generator, which vLLM seeds, too
NUM_RANDOM_SEEDS = 2**31  # every reader of JSON takes these for whole numbers
MAX_TEMPERATURE = 100.0
MAX_TOKENS = 2**24  # far beyond any model's context; catches typos
MAX_NAME_LENGTH = 200  # of requests and speakers
# What a device's memory allows; a model's ability ends earlier.
MAX_IMAGE_SIDE = 16_384
MAX_FRAMES_MADE = 100_000
MAX_FPS = 1000
MAX_DURATION_S = 24 * 60 * 60
MAX_NUM_INFERENCE_STEPS = 1000
