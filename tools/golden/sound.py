"""What transformers answers to a sound, tests/golden/sound: WhisperFeatureExtractor's spectrogram of a sweep, read by a
tiny Whisper with room for 30 s, and its uncached greedy answer. Of the drawn weights those are taken whose answers are
varied, have no near tie and differ from one sound to the other.

    python tools/golden/sound.py

Written with transformers 5.23, torch 2.15."""

import json
import pathlib

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

import reference

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/sound"
TABLE = "model.encoder.embed_positions.weight"  # sines and cosines, which a reader computes
SETTINGS = dict(
    vocab_size=64,
    num_mel_bins=8,
    d_model=16,
    encoder_layers=1,
    encoder_attention_heads=2,
    encoder_ffn_dim=12,
    decoder_layers=2,
    decoder_attention_heads=4,
    decoder_ffn_dim=20,
    max_source_positions=1500,
    max_target_positions=40,
    decoder_start_token_id=3,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    tie_word_embeddings=False,
)
# attention that picks some of 1500 tokens, so that what is heard shows
GAINS = {"conv1.weight": 3, "encoder_attn.q_proj.weight": 4, "encoder_attn.k_proj.weight": 4, "encoder_attn.out_proj.weight": 2}


def sweep(first):
    """A rising tone from `first` Hz on and noise, 1.25 s, as 16 bits hold them."""
    n = np.arange(20000)
    tone = np.sin(2 * np.pi * (first * n / 16000 + 1500 * (n / 16000) ** 2))
    noise = ((n * 7919 + 104729) % 65537) / 32768.0 - 1
    return (np.round((0.4 * tone + 0.05 * noise) * 32767) / 32768).astype(np.float32)


def answers(model, first):
    features = transformers.WhisperFeatureExtractor(feature_size=8)(
        sweep(first), sampling_rate=16000, return_tensors="pt"
    ).input_features
    ids, margins = reference.continue_greedily(model, features)
    return ids[0].tolist(), float(margins.min())


def main():
    for number in range(100):
        model = reference.build(f"sound/{number}", "WhisperForConditionalGeneration", "whisper", SETTINGS, gains=GAINS)
        found = [(first, *answers(model, first)) for first in (200, 900)]
        print(number, [(len(set(ids)), round(margin, 4)) for _, ids, margin in found], found[0][1] != found[1][1])
        varied = all(len(set(ids)) >= reference.MIN_DISTINCT for _, ids, _ in found)
        clear = all(margin > reference.MIN_MARGIN for _, _, margin in found)
        if varied and clear and found[0][1] != found[1][1]:
            break
    else:
        raise RuntimeError("no draw answers as is wanted")
    reference.save(model, FOLDER)
    tensors = load_file(FOLDER / "model.safetensors")
    tensors.pop(TABLE)
    save_file(tensors, FOLDER / "model.safetensors", metadata={"format": "pt"})
    story = {
        "reference": "transformers WhisperFeatureExtractor, WhisperForConditionalGeneration, CPU",
        "version": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "generator": "tools/golden/sound.py",
        "seed": [reference.SEED, number],
        "dtype": "float32",
        "answers": [
            {"first_hz": first, "token_ids": ids, "least_margin": round(margin, 4)} for first, ids, margin in found
        ],
        "why": "from the samples of a WAV file to text",
    }
    (FOLDER / "case.json").write_text(json.dumps(story, indent=1) + "\n")


if __name__ == "__main__":
    with torch.no_grad():
        main()
