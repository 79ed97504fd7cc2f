"""Prints what torch and transformers make of features, for nn/embed/features_test.cpp and infer/encoders/log_mel_test.cpp:
patches by conv2d with a class token and positions as transformers' ViTEmbeddings, Whisper's stem by conv1d, and
WhisperFeatureExtractor's spectrogram of a sound of 1.25 s (both in its own precision).
Parameters and inputs as in sequence_mixers.py. Written with transformers 5.23, torch 2.15. Run: python tools/golden/features.py"""

import numpy as np
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
D = 4


def gen(shape, a, b):
    return torch.sin(torch.arange(torch.Size(shape).numel(), dtype=torch.float64) * a + b).reshape(shape)


class Values:
    def __init__(self):
        self.i = -1

    def __call__(self, *shape):
        self.i += 1
        return gen(shape, 0.37 + 0.13 * self.i, 0.2 * self.i)


def show(name, y):
    print(name, ", ".join(f"{v:.10f}" for v in y.reshape(-1).tolist()))


def vit():
    from transformers.models.vit.modeling_vit import ViTConfig, ViTEmbeddings

    config = ViTConfig(hidden_size=D, image_size=(4, 6), patch_size=(2, 3), num_channels=3, hidden_dropout_prob=0.0)
    embeddings = ViTEmbeddings(config)
    v = Values()
    embeddings.patch_embeddings.projection.weight.data = v(D, 3 * 2 * 3).reshape(D, 3, 2, 3)
    embeddings.patch_embeddings.projection.bias.data = v(D)
    embeddings.cls_token.data = v(D).reshape(1, 1, D)
    embeddings.position_embeddings.data = v(5, D)[None]
    show("vit", embeddings(gen((1, 3, 4, 6), 0.41, 0.2)))


def overlapping():
    v = Values()
    weight, bias, token = v(D, 9).reshape(D, 1, 3, 3), v(D), v(D)
    y = F.conv2d(gen((1, 1, 5, 5), 0.41, 0.2), weight, bias, stride=(2, 1)).flatten(2)[0].T
    show("middle", torch.cat([y[:3], token[None], y[3:]]))


def whisper():
    from transformers.models.whisper.modeling_whisper import sinusoids

    v = Values()
    x = gen((1, 3, 7), 0.41, 0.2)
    for stride, channels in ((1, 3), (2, D)):
        weight, bias = v(D, channels * 3).reshape(D, channels, 3), v(D)
        x = F.gelu(F.conv1d(x, weight, bias, stride=stride, padding=1))
    show("whisper", x[0].T + sinusoids(4, D).to(torch.float64))


def spectrogram():
    from transformers import WhisperFeatureExtractor

    torch.set_default_dtype(torch.float32)
    n = np.arange(20000)
    sweep = np.sin(2 * np.pi * (200 * n / 16000 + 1500 * (n / 16000) ** 2))
    noise = ((n * 7919 + 104729) % 65537) / 32768.0 - 1
    x = (np.round((0.4 * sweep + 0.05 * noise) * 32767) / 32768).astype(np.float32)
    for mels in (80, 128):
        y = WhisperFeatureExtractor(feature_size=mels)(x, sampling_rate=16000, return_tensors="np").input_features[0]
        assert y.shape == (mels, 3000)
        print(f"mel{mels} sum {y.astype(np.float64).sum():.6f}; by band and frame:",
              ", ".join(f"{y[m, t]:.6f}" for m in range(0, mels, mels // 8) for t in (0, 1, 50, 99, 124, 125, 126, 1000, 2999)))


vit()
overlapping()
whisper()
spectrogram()
