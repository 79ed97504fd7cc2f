#include "tessera/model/techniques.h"

#include <fmt/format.h>

namespace tessera::model {

const std::vector<Technique>& techniques() {
  static const std::vector<Technique> all = {
      {"arrangement", "alternating_patterns",
       "Layers with other patterns in turn, such as windows between full attention.",
       "Child et al.: Generating Long Sequences with Sparse Transformers, arXiv:1904.10509; Gemma "
       "Team: Gemma 2, arXiv:2408.00118",
       2019, "\"pattern\" of each entry of \"layers\", as in zoo/gemma2"},
      {"arrangement", "factorised_heads",
       "Two sets of keys shared out to layers in turn, to halves of the heads, or merged.",
       "Child et al.: Generating Long Sequences with Sparse Transformers, arXiv:1904.10509, sec. "
       "4.3",
       2019, "\"combine\": alternate, multihead or merged, of patterns strided and fixed"},
      {"arrangement", "cross_layer_attention",
       "Cross-layer KV sharing: layers use the keys and values of an earlier one; fewer "
       "parameters, a "
       "smaller KV cache.",
       "Brandon et al.: Reducing Transformer Key-Value Cache Size with Cross-Layer Attention, "
       "arXiv:2405.12981",
       2024, "attention's \"kv_name\" and \"kv_of\", as in zoo/cross_layer_attention"},
      {"arrangement", "per_layer_embeddings",
       "Per-layer embeddings (PLE): a small vector of the token for each layer, gated by the "
       "stream.",
       "Google DeepMind: Gemma 3n model card", 2025,
       "a branch with ffn per_layer_embedding and \"inputs\": [\"stream\", \"embedding\"], as in "
       "zoo/gemma4"},
      {"arrangement", "layer_scalar",
       "A learned factor on the sum of stream and branch.",
       "Google DeepMind: Gemma 4 model card", 2026, "a residual's \"sum_gain\": true"},
      {"arrangement", "laurel",
       "LAuReL: a learned residual of low rank next to attention.",
       "Menghani et al.: LAuReL: Learned Augmented Residual Layer, arXiv:2411.07501", 2024,
       "residual altup's \"laurel_rank\", as in zoo/gemma3n"},
      {"arrangement", "activation_sparsity",
       "Gaussian top-k: a gate keeps what lies above a quantile of its own distribution.",
       "Google DeepMind: Gemma 3n model card", 2025, "glu's \"sparsity\": 0.95, as in zoo/gemma3n"},
      {"arrangement", "rezero",
       "A learned factor on every branch that begins at 0; no norm is needed.",
       "Bachlechner et al.: ReZero is All You Need, arXiv:2003.04887", 2020,
       "a residual's \"gain\": \"scalar\", with \"norm\": null"},
      {"arrangement", "layer_scale",
       "A learned factor on every channel of a branch that begins small.",
       "Touvron et al.: Going deeper with Image Transformers, arXiv:2103.17239", 2021,
       "a residual's \"gain\": \"channel\" and \"gain_init\": 0.1 (18 layers), 1e-5 (24), 1e-6 "
       "(36)"},
      {"arrangement", "encoder",
       "A stack that sees its whole text: hidden states, sentence vectors, masked tokens, classes.",
       "Devlin et al.: BERT, arXiv:1810.04805", 2018, "\"arch\": \"encoder\""},
      {"arrangement", "encoder_decoder",
       "A decoder with cross-attention to the output of an encoder, whose keys and values are "
       "cached.",
       "Vaswani et al.: Attention Is All You Need, arXiv:1706.03762; Raffel et al.: T5, "
       "arXiv:1910.10683",
       2017, "\"arch\": \"encoder_decoder\""},
      {"arrangement", "quantization_aware_training",
       "BitLinear: products of ternary weights and activations rounded to 8 bits per token, trained "
       "with straight-through gradients.",
       "Ma et al.: The Era of 1-bit LLMs: All Large Language Models are in 1.58 Bits, "
       "arXiv:2402.17764; Wang et al.: BitNet, arXiv:2310.11453",
       2024, "\"quantization\": {} of a spec, layer or branch, as in zoo/bitnet"},
      {"computation", "beam_search",
       "Search for the most likely text with several hypotheses in parallel.",
       "Sutskever, Vinyals, Le: Sequence to Sequence Learning with Neural Networks, "
       "arXiv:1409.3215",
       2014, "generate --beams N"},
      {"computation", "flash_attention",
       "Attention by tiles with a running softmax, forward and backward: memory is linear in the "
       "keys.",
       "Dao et al.: FlashAttention, arXiv:2205.14135; Dao: FlashAttention-2, arXiv:2307.08691",
       2022, "automatic in training on a CPU, with patterns, caps and tables by distance"},
      {"computation", "chunked_attention",
       "Memory-efficient attention: one block of queries at a time, so that memory is that of its "
       "scores.",
       "Rabe, Staats: Self-attention Does Not Need O(n^2) Memory, arXiv:2112.05682", 2021,
       "automatic for more than a million scores without flash_attention: positions that read "
       "contents, double"},
      {"computation", "split_kv_decoding",
       "The keys of few queries in fixed blocks that threads share out; the parts are merged by "
       "the logs of their sums of exponentials (LSE merge).",
       "Dao, Haziza, Massa, Sizov: Flash-Decoding for long-context inference, 2023 "
       "(pytorch.org/blog/flash-decoding); after Milakov, Gimelshein, arXiv:1805.02867",
       2023, "automatic in generation; the same bits for any number of threads"},
      {"computation", "heavy_hitters",
       "KV cache eviction: keeps the keys with the most attention weight (heavy hitters) and the "
       "last ones.",
       "Zhang et al.: H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large "
       "Language "
       "Models, arXiv:2306.14048",
       2023, "--keep-heavy N with --keep-last; attention's \"heavy\""},
      {"computation", "ring_attention",
       "Sequence parallelism: contiguous parts of a sequence on the ranks of a ring, which pass on "
       "their keys and values.",
       "Liu, Zaharia, Abbeel: Ring Attention with Blockwise Transformers for Near-Infinite "
       "Context, arXiv:2310.01889",
       2023, "train --sequence-parallel N:ring, or N:zigzag (simulated in one process)"},
      {"computation", "striped_attention",
       "Ring attention whose ranks hold every n-th token: even work with causal attention.",
       "Brandon et al.: Striped Attention: Faster Ring Attention for Causal Transformers, "
       "arXiv:2311.09431",
       2023, "train --sequence-parallel N:striped (simulated in one process)"},
      {"arrangement", "multi_token_prediction",
       "Additional heads of a decoder that predict tokens further ahead (MTP, Medusa); they draft "
       "for "
       "self-speculative decoding.",
       "Gloeckle et al.: Better & Faster Large Language Models via Multi-token Prediction, "
       "arXiv:2404.19737; DeepSeek-AI: DeepSeek-V3 Technical Report, arXiv:2412.19437",
       2024, "a spec's \"predictors\", as in zoo/multi_token; generate --predictors"},
      {"arrangement", "changing_experts",
       "Growing and pruning experts during training: copies of the most used ones, without the "
       "least "
       "used ones.",
       "Guo et al.: Dynamic Mixture of Experts: An Auto-Tuning Approach, arXiv:2405.14297; Chen et "
       "al.: Task-Specific Expert Pruning, arXiv:2206.00277",
       2022, "experts.grow and experts.remove in a recipe; convert --grow-experts, --keep-experts"},
      {"arrangement", "distilled_experts",
       "A mixture of experts as one dense layer that computes nearly the same on a text.",
       "Hinton, Vinyals, Dean: Distilling the Knowledge in a Neural Network, arXiv:1503.02531; "
       "Romero et al.: FitNets, arXiv:1412.6550",
       2014, "convert --distill-experts --text FILE"},
      {"computation", "early_exit",
       "Early exit: losses at earlier layers, which then draft for the model with its own weights.",
       "Elhoushi et al.: LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding, "
       "arXiv:2404.16710",
       2024, "train.early_exit in a recipe; generate --exit-layer N"},
      {"computation", "gradient_checkpointing",
       "Layers, mixers or feed-forward layers are recomputed in the backward pass instead of "
       "storing "
       "their activations; the same bits.",
       "Chen et al.: Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174", 2016,
       "train.recompute in a recipe"},
      {"computation", "speculative_decoding",
       "A draft model, or the text itself, drafts several tokens that one pass verifies; the "
       "output "
       "is unchanged.",
       "Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, "
       "arXiv:2211.17192; Saxena: Prompt Lookup Decoding, 2023",
       2022, "generate --draft MODEL, or --lookup N"},
      {"storage", "paged_kv", "KV cache in pages that sequences share, copied on write.",
       "Kwon et al.: Efficient Memory Management for Large Language Model Serving with "
       "PagedAttention, arXiv:2309.06180",
       2023, "automatic; --kv-page N of generate, eval and bench, 0 = no pages"},
      {"storage", "int8_kv",
       "Keys and values as 8-bit integers with a scale per token and head, the largest number of "
       "which fills the range.",
       "Dettmers et al.: LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale, "
       "arXiv:2208.07339 (absmax quantization by vectors)",
       2022, "--kv-type int8 of generate, eval, bench and plan"},
      {"storage", "fp8_kv",
       "Keys and values as 8-bit floats (e4m3) with a scale per token and head.",
       "Micikevicius et al.: FP8 Formats for Deep Learning, arXiv:2209.05433", 2022,
       "--kv-type fp8 of generate, eval, bench and plan"},
      {"storage", "int4_kv",
       "Keys and values as 4-bit integers with a step and a least number per 32 of a token's head.",
       "Liu et al.: KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache, "
       "arXiv:2402.02750 (values per token; here keys too)",
       2024, "--kv-type int4 of generate, eval, bench and plan"},
      {"storage", "prefix_caching",
       "States of prompt prefixes in a tree of tokens: common prefixes are computed once.",
       "Zheng et al.: SGLang: Efficient Execution of Structured Language Model Programs, "
       "arXiv:2312.07104 (RadixAttention)",
       2023, "generate --prefix-cache MiB"},
  };
  return all;
}

std::string technique_table() {
  std::string out = "| group | name | what | source | use |\n|---|---|---|---|---|\n";
  for (const Technique& t : techniques())
    out +=
        fmt::format("| {} | `{}` | {} | {} | {} |\n", t.group, t.name, t.summary, t.paper, t.use);
  return out;
}

}  // namespace tessera::model
