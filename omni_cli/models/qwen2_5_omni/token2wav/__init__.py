"""token2wav: codec tokens to mel spectrogram (DiT), and mel spectrogram to waveform (BigVGAN)."""
