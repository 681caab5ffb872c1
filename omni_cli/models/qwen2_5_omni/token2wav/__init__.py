"""token2wav: codec tokens to a waveform. Data flows from top to bottom:

    codec tokens of the talker
      stage.py               one request in the engine per waveform, or per chunk of a stream (`Chunker`)
      model.py               vLLM's runner calls `sample` in each step of the engine
    SynthesisRequest (request.py)
      scheduler.py           selects per call: requests join a batch, a batch makes a denoising step, or a waveform is
                             made; on a CPU with `padded` each thread has a task of its own
    batch of requests
      denoising.py           noise and conditions (codes, speaker), packed (`Layout`); four evaluations of the DiT per
                             step, and a part of a Runge-Kutta step after each
        velocity.py          an evaluation; with `batching: exact`: transformers' layers, one request per batch; with
                             `batching: padded`: blocks of all requests in one row
    mel spectrograms; of a stream's chunk with `padded` also its ChunkState, which the next chunk continues from
      Vocoder (platform.py)  BigVGAN on the frames of the requested codes, and some before and after them
    waveform, 24 kHz float32 on the host

`synthesizer.py` puts the parts together as the stage's keys say, including `execution`: eager, compiled, or CUDA
graphs. All that differs per device is in a `Platform` of operations:

    platform.py              torch's operations, for any device; with `exact` on all devices; `CpuPlatform` for `padded`
                             on a CPU: oneDNN's linear layers, a batch per thread
    cuda/                    `padded` on a GPU: Triton kernels, a vocoder for several requests in one call
"""
