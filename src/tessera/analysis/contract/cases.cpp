#include "tessera/analysis/contract/cases.h"

#include <optional>
#include <set>
#include <utility>

#include "tessera/analysis/contract/schema.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/nn/registry.h"

namespace tessera::contract {
namespace {

struct Sample {
  Slot slot;
  const char* mechanism;
  const char* label;   // "" replaces the derived config
  const char* fields;  // JSON, added to the derived required fields
};

// Required fields whose derived value does not fit, and combinations worth a case of their own.
constexpr Sample kSamples[] = {
    {Slot::position, "learned", "", R"({"n_positions": 40, "offset": 2})"},
    {Slot::position, "learned", "longer_interpolate",
     R"({"n_positions": 7, "offset": 2, "longer": "interpolate"})"},
    {Slot::position, "rope", "partial", R"({"rotary_dim": 2, "theta": 100})"},
    {Slot::position, "sinusoidal", "halves_t2t",
     R"({"layout": "halves", "frequency": "t2t", "offset": 2})"},
    {Slot::position, "t5", "few", R"({"n_buckets": 6, "max_distance": 9})"},
    {Slot::position, "t5", "shared", R"({"n_buckets": 4, "max_distance": 6, "share": "all"})"},
    {Slot::position, "shaw", "both_ends",
     R"({"left": 5, "right": 2, "sign": "query_minus_key", "terms": "query_and_key", "values": true})"},
    {Slot::position, "shaw", "of_a_decoder",
     R"({"left": 5, "right": 0, "sign": "query_minus_key", "terms": "query_and_key", "values": true})"},
    {Slot::position, "xl", "clamped", R"({"clamp": 6, "share": "all", "layout": "interleaved"})"},
    {Slot::position, "fire", "short", R"({"threshold": 4, "d_hidden": 5})"},
    {Slot::position, "deberta", "buckets",
     R"({"max_relative": 12, "buckets": 6, "norm": "layer_norm", "share": "all"})"},
    {Slot::position, "tupe", "", R"({"n_positions": 40})"},
    {Slot::position, "tupe", "relative",
     R"({"n_positions": 40, "buckets": 8, "max_distance": 9, "untie_cls": true, "share": "all"})"},
    {Slot::position, "decoupled", "", R"({"n_positions": 40, "rank": 3})"},
    {Slot::position, "decoupled", "variant_untied", R"({"variant": "untied", "n_positions": 40})"},
    {Slot::position, "decoupled", "variant_diet_rel",
     R"({"variant": "diet_rel", "max_distance": 5})"},
    {Slot::position, "decoupled", "variant_disentangled",
     R"({"variant": "disentangled", "max_distance": 6})"},
    {Slot::position, "decoupled", "variant_decoupled_rope",
     R"({"variant": "decoupled_rope", "rank": 2})"},
    {Slot::position, "xpos", "", R"({"scale_base": 8})"},
    {Slot::position, "p_rope", "half", R"({"fraction": 0.5, "theta": 100})"},
    {Slot::position, "m_rope", "uneven", R"({"sections": [1, 1, 0]})"},
    {Slot::position, "axial", "", R"({"rows": 5, "columns": 8})"},
    {Slot::position, "axial", "uneven", R"({"rows": 8, "columns": 5, "d_row": 3})"},
    {Slot::position, "convolutional", "", R"({"kernel": 5, "groups": 2})"},
    {Slot::position, "convolutional", "even", R"({"kernel": 4, "groups": 4})"},
    {Slot::rope_scaling, "yarn", "", R"({"factor": 4, "original_length": 64})"},
    {Slot::rope_scaling, "llama3", "", R"({"factor": 8, "original_length": 64})"},
    // within the trained length, and across it
    {Slot::rope_scaling, "dynamic", "", R"({"factor": 2, "original_length": 64})"},
    {Slot::rope_scaling, "dynamic", "crossing", R"({"factor": 2, "original_length": 7})"},
    {Slot::rope_scaling, "longrope", "",
     R"({"short_factor": [1, 1.5], "long_factor": [2, 3], "original_length": 64, "factor": 4})"},
    {Slot::rope_scaling, "longrope", "crossing",
     R"({"short_factor": [1, 1.5], "long_factor": [2, 3], "original_length": 7, "factor": 4})"},
    {Slot::pattern, "longformer", "", R"({"width": 4, "global_tokens": [0, 3]})"},
    {Slot::pattern, "longformer", "dilated", R"({"width": 2, "dilations": [1, 3]})"},
    {Slot::pattern, "sink_window", "", R"({"first": 2, "width": 4})"},
    {Slot::pattern, "big_bird", "", R"({"block": 2, "random": 1})"},
    {Slot::pattern, "big_bird", "first_block_twice",
     R"({"block": 3, "random": 2, "draw": "first_block"})"},
    {Slot::pattern, "block_sparse", "", R"({"block": 2, "local": 2, "stride": 3})"},
    {Slot::pattern, "fixed", "summaries", R"({"stride": 5, "summary": 2, "sub_blocks": 2})"},
    {Slot::pattern, "fixed", "self_false",
     R"({"stride": 4, "combine": "alternate", "self": false})"},
    {Slot::pattern, "random", "", R"({"block": 2, "blocks": 2})"},
    {Slot::pattern, "dilated", "", R"({"segments": [4, 12], "dilations": [1, 2]})"},
    {Slot::select, "indexer", "", R"({"n_heads": 2, "head_dim": 4, "top_k": 3})"},
    {Slot::select, "block_indexer", "", R"({"n_heads": 1, "head_dim": 4, "size": 2, "top_k": 2})"},
    {Slot::select, "pooled_indexer", "",
     R"({"n_heads": 2, "head_dim": 4, "size": 2, "top_k": 2})"},
    {Slot::mixer, "attention", "selected_means",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "gate": "elementwise", "position": {"type": "rope", "rotary_dim": 2},
        "select": {"type": "pooled_indexer", "n_heads": 3, "head_dim": 5, "size": 3, "top_k": 1}})"},
    {Slot::mixer, "engram", "",
     R"({"width": 8, "ngram": 3, "heads": 2, "rows": 5, "pad": 1, "d_conv": 2})"},
    {Slot::mixer, "engram", "one_tap",
     R"({"width": 6, "ngram": 4, "heads": 1, "rows": 7, "seed": 3, "index": 1, "pad": 2, "cut": true, "d_conv": 1})"},
    {Slot::mixer, "attention", "selected_blocks",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "sinks": true, "position": {"type": "rope", "rotary_dim": 2},
        "select": {"type": "block_indexer", "n_heads": 2, "head_dim": 6, "size": 3, "top_k": 2}})"},
    {Slot::mixer, "attention", "selected",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "softcap": 2.5, "sinks": true,
        "position": {"type": "rope", "rotary_dim": 2},
        "select": {"type": "indexer", "n_heads": 3, "head_dim": 5, "top_k": 4, "layout": "interleaved"}})"},
    {Slot::mixer, "attention", "", R"({"n_heads": 2, "position": "rope"})"},
    {Slot::mixer, "attention", "narrow_values",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "v_head_dim": 4, "position": "rope", "v_norm": "rms_norm",
        "gate": "elementwise", "inner_norm": "rms_norm"})"},
    {Slot::mixer, "attention", "wide_values",
     R"({"n_heads": 2, "head_dim": 4, "v_head_dim": 7, "sinks": true, "pattern": {"type": "window", "width": 5}})"},
    {Slot::mixer, "attention", "gate_bias_true",
     R"({"n_heads": 2, "position": "rope", "gate": "elementwise", "gate_bias": true})"},
    {Slot::mixer, "attention", "grouped",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "softcap": 2.5, "position": "rope",
        "bias": {"q": true, "k": true, "v": true, "o": true}, "scale": "value", "scale_value": 0.6})"},
    {Slot::mixer, "attention", "one_kv_head",
     R"({"n_heads": 2, "n_kv_heads": 1, "position": {"type": "rope", "layout": "interleaved"}})"},
    {Slot::mixer, "attention", "qk_norm_head",
     R"({"n_heads": 2, "qk_norm": "rms_norm", "position": "rope"})"},
    {Slot::mixer, "attention", "qk_norm_over_projection",
     R"({"n_heads": 2, "n_kv_heads": 1, "qk_norm": "layer_norm", "qk_norm_over": "projection", "position": "rope"})"},
    {Slot::mixer, "attention", "qk_norm_over_each_head",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qk_norm": {"type": "layer_norm", "eps": 0.01}, "qk_norm_over": "each_head",
        "position": "rope"})"},
    {Slot::mixer, "attention", "qk_norm_at_after_rotation",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qk_norm": {"type": "rms_norm", "eps": 0.01},
        "qk_norm_at": "after_rotation", "position": "rope", "scale": "learned", "scale_value": 0.6,
        "pattern": {"type": "longformer", "width": 4, "global_tokens": [0, 3], "projections": "separate"}})"},
    {Slot::mixer, "attention", "tempered",
     R"({"n_heads": 2, "temperature": {"scale": 0.5, "floor": 3}, "position": "rope"})"},
    {Slot::mixer, "attention", "temperature_log_below_true",
     R"({"n_heads": 2, "temperature": {"log_length": 4, "log_below": true}, "position": "rope"})"},
    {Slot::mixer, "attention", "log_n",
     R"({"n_heads": 2, "temperature": {"log_length": 6}, "position": "rope"})"},
    {Slot::mixer, "attention", "clipped_and_gated",
     R"({"n_heads": 2, "clip": 0.3, "gate": "elementwise", "gate_bias": true, "position": "rope"})"},
    {Slot::mixer, "attention", "gate_per_head", R"({"n_heads": 2, "gate": "headwise"})"},
    {Slot::mixer, "attention", "gate_at_after_value",
     R"({"n_heads": 4, "n_kv_heads": 2, "gate": "headwise", "gate_at": "after_value", "position": "rope",
        "pattern": {"type": "longformer", "width": 4, "global_tokens": [0, 3]}})"},
    {Slot::mixer, "attention", "gate_at_after_o",
     R"({"n_heads": 2, "gate": "elementwise", "gate_at": "after_o", "gate_bias": true, "position": "rope"})"},
    {Slot::mixer, "attention", "gate_act_silu",
     R"({"n_heads": 4, "n_kv_heads": 2, "gate": "elementwise", "gate_at": "after_value", "gate_act": "silu",
        "position": "rope"})"},
    {Slot::mixer, "attention", "gate_act_softplus",
     R"({"n_heads": 4, "n_kv_heads": 2, "gate": "headwise", "gate_act": "softplus", "position": "rope"})"},
    {Slot::mixer, "attention", "cosine",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qk_norm": {"type": "l2_norm", "eps": 0.01},
        "scale": "learned_headwise", "scale_value": 3, "position": "rope"})"},
    {Slot::mixer, "attention", "scale_on_query",
     R"({"n_heads": 2, "scale": "value", "scale_value": 0.6, "scale_on": "query", "position": "rope",
        "pattern": {"type": "longformer", "width": 4, "global_tokens": [0, 3], "projections": "separate"}})"},
    {Slot::mixer, "attention", "values_normed",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qk_norm": "rms_norm", "position": "rope",
        "v_norm": {"type": "rms_norm", "weight": "none", "eps": 0.01}})"},
    {Slot::mixer, "attention", "zero_attn",
     R"({"n_heads": 4, "n_kv_heads": 2, "add_zero_attn": true, "softcap": 3, "sinks": true, "position": "rope",
        "pattern": {"type": "window", "width": 3}})"},
    {Slot::mixer, "attention", "windowed",
     R"({"n_heads": 2, "pattern": {"type": "window", "width": 3}, "position": "rope"})"},
    {Slot::pattern, "prefix", "three", R"({"length": 3})"},
    {Slot::pattern, "window", "sides", R"({"width": 5, "right": 3})"},
    {Slot::mixer, "attention", "sinks",
     R"({"n_heads": 4, "n_kv_heads": 2, "sinks": true, "position": "rope", "pattern": {"type": "window", "width": 5}})"},
    // scores with terms of their own, beside a cap, sinks, a ring and groups of heads
    {Slot::mixer, "attention", "values_term",
     R"({"n_heads": 4, "n_kv_heads": 2, "softcap": 4, "sinks": true, "pattern": {"type": "window", "width": 5},
        "position": {"type": "shaw", "left": 3, "values": true}})"},
    {Slot::mixer, "attention", "shared_projections",
     R"({"n_heads": 4, "n_kv_heads": 2, "qk_norm": "rms_norm",
        "position": {"type": "deberta", "max_relative": 6, "projections": "mixer"}})"},
    // a softmax cannot see a bias of the keys; behind a cap it can
    {Slot::mixer, "cross_attention", "", R"({"n_heads": 2, "softcap": 2.5})"},
    {Slot::mixer, "cross_attention", "grouped",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 3, "scale": "value", "scale_value": 0.7,
        "bias": {"q": true, "v": true, "o": true}})"},
    {Slot::mixer, "cross_attention", "qk_norm_over_projection",
     R"({"n_heads": 2, "n_kv_heads": 1, "qk_norm": "layer_norm", "qk_norm_over": "projection",
        "softcap": 3})"},
    {Slot::mixer, "cross_attention", "qk_norm_over_each_head",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qk_norm": {"type": "layer_norm", "eps": 0.01},
        "qk_norm_over": "each_head", "softcap": 3})"},
    {Slot::mixer, "merged_attention", "", R"({"n_heads": 2, "softcap": 2.5, "position": "rope"})"},
    {Slot::mixer, "merged_attention", "windowed",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "scale": "value", "scale_value": 0.7,
        "pattern": {"type": "window", "width": 4}, "position": "rope",
        "bias": {"q": true, "k": true, "v": true, "o": true}})"},
    {Slot::mixer, "merged_attention", "qk_norm_over_projection",
     R"({"n_heads": 2, "n_kv_heads": 1, "qk_norm": "layer_norm", "qk_norm_over": "projection",
        "softcap": 3})"},
    {Slot::mixer, "merged_attention", "qk_norm_over_each_head",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "qk_norm": {"type": "layer_norm", "eps": 0.01},
        "qk_norm_over": "each_head", "softcap": 3})"},
    // a rotation, which a bias of the keys does not leave the softmax with
    {Slot::mixer, "forgetting_attention", "", R"({"n_heads": 2, "position": "rope"})"},
    {Slot::mixer, "forgetting_attention", "qk_norm_over_projection",
     R"({"n_heads": 2, "n_kv_heads": 1, "qk_norm": "rms_norm", "qk_norm_over": "projection"})"},
    {Slot::mixer, "forgetting_attention", "grouped",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "gate": true, "qk_norm": "rms_norm", "position": "rope",
        "bias": {"q": true, "k": true, "v": true, "o": true}})"},
    {Slot::mixer, "forgetting_attention", "qk_norm_over_each_head",
     R"({"n_heads": 2, "qk_norm": {"type": "rms_norm", "eps": 0.01}, "qk_norm_over": "each_head"})"},
    {Slot::mixer, "mamba2", "", R"({"n_heads": 2, "d_state": 4})"},
    {Slot::mixer, "mamba2", "groups",
     R"({"n_heads": 4, "head_dim": 3, "d_state": 5, "n_groups": 2, "norm_groups": 2, "d_conv": 3, "chunk": 3,
        "proj_bias": true, "dt_min": 0.01, "dt_max": 0.4})"},
    {Slot::mixer, "mamba2", "unnormed", R"({"n_heads": 2, "d_state": 4, "norm_groups": 0})"},
    {Slot::mixer, "mamba2", "one_tap", R"({"n_heads": 2, "d_state": 4, "d_conv": 1})"},
    {Slot::mixer, "mamba2", "ungated_part",
     R"({"n_heads": 5, "head_dim": 3, "d_ssm": 6, "d_state": 4, "chunk": 3, "d_per_channel": true})"},
    {Slot::mixer, "mamba2", "levels",
     R"({"n_heads": 4, "head_dim": 3, "d_state": 5, "n_groups": 2, "chunk": 4, "levels": 7})"},
    {Slot::mixer, "differential_attention", "", R"({"n_heads": 2, "position": "rope"})"},
    {Slot::mixer, "differential_attention", "grouped",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "layout": "halves", "lambda_init": 0.5,
        "position": "rope", "norm": {"type": "rms_norm", "eps": 1e-3, "weight": "none"},
        "bias": {"q": true, "k": true, "v": true, "o": true}})"},
    {Slot::mixer, "differential_attention", "scored",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 3,
        "position": {"type": "deberta", "max_relative": 6, "projections": "mixer"}})"},
    {Slot::mixer, "differential_attention", "windowed",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 4, "position": "rope", "pattern": {"type": "window", "width": 5}})"},
    {Slot::mixer, "attention", "heavy",
     R"({"n_heads": 4, "n_kv_heads": 2, "position": "rope", "heavy": {"keep": 3, "last": 2, "every": 2}})"},
    {Slot::mixer, "differential_attention", "sink_window",
     R"({"n_heads": 2, "layout": "halves", "position": "rope", "pattern": {"type": "sink_window", "first": 2, "width": 4}})"},
    {Slot::mixer, "differential_attention", "longformer",
     R"({"n_heads": 2, "position": "t5", "pattern": {"type": "longformer", "width": 4, "dilations": [1, 2], "global_tokens": [3]}})"},
    {Slot::mixer, "latent_attention", "",
     R"({"n_heads": 2, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
        "position": {"type": "rope", "layout": "interleaved", "scaling": {"type": "yarn", "factor": 4,
        "original_length": 64, "mscale": 1, "mscale_all_dim": 1}}})"},
    {Slot::mixer, "latent_attention", "q_latent",
     R"({"n_heads": 3, "q_lora_rank": 5, "kv_lora_rank": 4, "qk_nope_head_dim": 3, "qk_rope_head_dim": 4,
        "v_head_dim": 9, "position": "rope", "bias": true, "scale": "value", "scale_value": 0.6})"},
    {Slot::mixer, "latent_attention", "scaled_latents",
     R"({"n_heads": 2, "q_lora_rank": 5, "kv_lora_rank": 4, "qk_nope_head_dim": 3, "qk_rope_head_dim": 4, "position": "rope",
        "q_latent_scale": 1.5, "kv_latent_scale": 0.7})"},
    {Slot::mixer, "latent_attention", "selected",
     R"({"n_heads": 3, "q_lora_rank": 5, "kv_lora_rank": 4, "qk_nope_head_dim": 3, "qk_rope_head_dim": 4,
        "position": {"type": "rope", "layout": "interleaved"},
        "select": {"type": "indexer", "n_heads": 2, "head_dim": 6, "top_k": 5}})"},
    {Slot::mixer, "latent_attention", "selected_last",
     R"({"n_heads": 3, "q_lora_rank": 5, "kv_lora_rank": 4, "qk_nope_head_dim": 3, "qk_rope_head_dim": 4, "sinks": true,
        "gate": "elementwise", "position": "rope",
        "select": {"type": "indexer", "n_heads": 2, "head_dim": 6, "top_k": 5, "rotated": "last", "norm_eps": 0.01}})"},
    {Slot::mixer, "latent_attention", "q_latent_normed_and_raw",
     R"({"n_heads": 2, "q_lora_rank": 5, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 5, "position": "rope",
        "q_latent": "normed_and_raw", "rope_norm": "rms_norm"})"},
    {Slot::mixer, "latent_attention", "gate_of_query_latent",
     R"({"n_heads": 2, "q_lora_rank": 5, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 5, "position": "rope",
        "q_latent": "normed_and_raw", "gate": "elementwise", "gate_of": "query_latent"})"},
    {Slot::mixer, "latent_attention", "gated",
     R"({"n_heads": 2, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 5, "position": "rope",
        "gate": "headwise"})"},
    {Slot::mixer, "latent_attention", "gated_elementwise",
     R"({"n_heads": 2, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "v_head_dim": 5, "position": "rope",
        "gate": "elementwise"})"},
    {Slot::mixer, "latent_attention", "tempered",
     R"({"n_heads": 2, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "position": "rope",
        "temperature": {"scale": 0.5, "floor": 3}})"},
    {Slot::mixer, "latent_attention", "temperature_log_below_true",
     R"({"n_heads": 2, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
        "temperature": {"log_length": 4, "log_below": true}})"},
    {Slot::mixer, "latent_attention", "no_rope",
     R"({"n_heads": 2, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 0, "latent_norm": null})"},
    // absorbed, what the scores gain still reads expanded queries and keys
    {Slot::mixer, "latent_attention", "scored",
     R"({"n_heads": 2, "q_lora_rank": 5, "kv_lora_rank": 6, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2,
        "position": {"type": "deberta", "max_relative": 6, "projections": "mixer"}})"},
    {Slot::mixer, "latent_attention", "scored_by_distance",
     R"({"n_heads": 2, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 0, "position": "alibi"})"},
    {Slot::mixer, "latent_attention", "windowed",
     R"({"n_heads": 2, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2, "position": "rope",
        "pattern": {"type": "window", "width": 5}})"},
    {Slot::mixer, "latent_attention", "sink_window",
     R"({"n_heads": 2, "q_lora_rank": 5, "kv_lora_rank": 6, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
        "position": "rope", "pattern": {"type": "sink_window", "first": 2, "width": 4}})"},
    {Slot::mixer, "latent_attention", "strided_and_scored",
     R"({"n_heads": 2, "kv_lora_rank": 6, "qk_nope_head_dim": 3, "qk_rope_head_dim": 2,
        "position": {"type": "deberta", "max_relative": 6, "projections": "mixer"},
        "pattern": {"type": "strided", "stride": 4, "combine": "multihead"}})"},
    {Slot::mixer, "attention", "groups",
     R"({"n_heads": 2, "position": "rope", "groups": {"q": 4, "k": 2, "v": 8, "o": 2}})"},
    {Slot::mixer, "mixed_attention", "", R"({"n_heads": 2, "kernel": 3})"},
    {Slot::mixer, "mixed_attention", "biased",
     R"({"n_heads": 1, "head_dim": 3, "kernel": 5, "conv_bias": true, "bias": {"q": true, "v": true, "o": true}})"},
    {Slot::mixer, "bottleneck", "",
     R"({"width": 4, "n_heads": 2, "n_ffns": 2, "ffn": {"type": "mlp", "d_hidden": 6}})"},
    {Slot::mixer, "bottleneck", "attention_bottleneck",
     R"({"width": 6, "n_heads": 3, "attention": "bottleneck", "project_bias": true, "n_ffns": 1,
        "bias": {"q": true, "v": true, "o": true}, "norm": "layer_norm", "ffn": {"type": "glu", "d_hidden": 5}})"},
    {Slot::mixer, "linformer", "", R"({"n_heads": 2, "n_slots": 3, "max_length": 24})"},
    {Slot::mixer, "linformer", "conv",
     R"({"n_heads": 2, "head_dim": 3, "n_slots": 5, "max_length": 23, "method": "conv",
        "order": "compress_then_project", "bias": {"q": true, "v": true, "o": true}})"},
    {Slot::mixer, "linformer", "method_conv_heads",
     R"({"n_heads": 2, "head_dim": 3, "n_slots": 5, "max_length": 23, "method": "conv_heads", "share": "kv"})"},
    {Slot::mixer, "linformer", "any_length_mean",
     R"({"n_heads": 2, "n_slots": 3, "method": "mean"})"},
    {Slot::mixer, "performer", "", R"({"n_heads": 2, "n_features": 6, "position": "rope"})"},
    {Slot::mixer, "performer", "features_relu_deterministic",
     R"({"n_heads": 2, "features": "relu_deterministic", "position": "rope", "chunk": 3, "eps": 0.5})"},
    {Slot::mixer, "performer", "rows_hadamard",
     R"({"n_heads": 2, "n_features": 6, "rows": "hadamard", "position": "rope"})"},
    // many directions: the denominators of few may vanish
    {Slot::mixer, "performer", "features_trigonometric",
     R"({"n_heads": 2, "n_features": 64, "features": "trigonometric", "position": "rope"})"},
    {Slot::mixer, "performer", "hyperbolic",
     R"({"n_heads": 2, "head_dim": 3, "n_features": 32, "features": "softmax_hyperbolic", "eps": 0.01, "chunk": 3,
        "seed": 5, "bias": {"v": true, "o": true}})"},
    {Slot::mixer, "gau", "", R"({"d_key": 6, "position": "rope"})"},
    {Slot::mixer, "gau", "scored",
     R"({"d_key": 6, "divisor": "max_length", "max_length": 8,
        "position": {"type": "shaw", "left": 3, "terms": "query_and_key"}})"},
    {Slot::mixer, "gau", "scored_by_count",
     R"({"d_key": 6, "position": {"type": "t5", "n_buckets": 6, "max_distance": 9}})"},
    {Slot::mixer, "flash_gau", "",
     R"({"d_hidden": 12, "d_key": 6, "group": 4, "position": "rope"})"},
    {Slot::mixer, "flash_gau", "scored",
     R"({"d_hidden": 6, "d_key": 4, "group": 4, "position": {"type": "decoupled", "n_positions": 64}})"},
    {Slot::mixer, "multi_level_attention", "",
     R"({"n_heads": 2, "ratios": [1, 2, 4], "windows": [2, 1], "position": "rope"})"},
    {Slot::mixer, "multi_level_attention", "grouped",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 3, "ratios": [1, 3], "windows": [2], "pool": "depthwise_conv",
        "bias": {"q": true, "k": true, "v": true, "o": true}})"},
    {Slot::mixer, "multi_level_attention", "source_cascade",
     R"({"n_heads": 4, "n_kv_heads": 2, "ratios": [1, 2, 4], "windows": [2, 1], "pool": "mlp", "pool_hidden": 3,
        "source": "cascade", "position": "rope"})"},
    {Slot::mixer, "multi_level_attention", "cascaded_conv",
     R"({"n_heads": 4, "n_kv_heads": 2, "ratios": [1, 2, 4], "windows": [2, 4], "pool": "conv",
        "source": "cascade", "combine": "gated", "mode": "overlap"})"},
    {Slot::mixer, "multi_level_attention", "scored",
     R"({"n_heads": 4, "n_kv_heads": 2, "ratios": [1, 2, 4], "windows": [2, 4],
        "position": {"type": "shaw", "left": 5, "terms": "query_and_key"}})"},
    {Slot::mixer, "multi_level_attention", "semantic",
     R"({"n_heads": 4, "n_kv_heads": 2, "ratios": [1, 3], "windows": [4], "semantic": 2})"},
    {Slot::mixer, "multi_level_attention", "semantic_gated",
     R"({"n_heads": 2, "ratios": [1], "windows": [], "semantic": 3, "combine": "gated"})"},
    {Slot::mixer, "lsh_attention", "",
     R"({"n_heads": 2, "chunk": 3, "n_hashes": 2, "n_buckets": [4]})"},
    {Slot::mixer, "lsh_attention", "one_chunk", R"({"n_heads": 2, "head_dim": 3, "chunk": 64})"},
    {Slot::mixer, "lsh_attention", "padded",
     R"({"n_heads": 2, "chunk": 3, "n_hashes": 2, "pad_to": 9, "rotations": "torch"})"},
    {Slot::mixer, "lsh_attention", "scored",
     R"({"n_heads": 2, "chunk": 3, "n_hashes": 2, "n_buckets": [4], "position": "kerple"})"},
    {Slot::mixer, "local_attention", "", R"({"n_heads": 2, "chunk": 3, "position": "rope"})"},
    {Slot::mixer, "local_attention", "both_sides",
     R"({"n_heads": 2, "head_dim": 3, "chunk": 4, "chunks_before": 2, "chunks_after": 1})"},
    {Slot::mixer, "local_attention", "padded",
     R"({"n_heads": 2, "chunk": 3, "chunks_before": 2, "pad_to": 12})"},
    {Slot::mixer, "local_attention", "scored",
     R"({"n_heads": 2, "chunk": 3, "position": {"type": "shaw", "left": 4, "values": true}})"},
    {Slot::mixer, "native_sparse_attention", "",
     R"({"n_heads": 4, "n_kv_heads": 2, "block": 4, "stride": 2, "select_block": 4, "n_selected": 3,
        "n_initial": 1, "n_local": 1, "window": 3, "position": "rope"})"},
    {Slot::mixer, "native_sparse_attention", "scored",
     R"({"n_heads": 4, "n_kv_heads": 2, "block": 4, "stride": 2, "select_block": 4, "n_selected": 3,
        "window": 4, "pool": "mean", "position": {"type": "xl"}})"},
    {Slot::mixer, "native_sparse_attention", "shared_kv_true",
     R"({"n_heads": 4, "n_kv_heads": 2, "block": 2, "stride": 2, "select_block": 2, "n_selected": 3,
        "window": 3, "pool": "mean", "shared_kv": true, "gate_bias": false, "position": "rope",
        "bias": {"q": true, "k": true, "v": true, "o": true}})"},
    {Slot::mixer, "native_sparse_attention", "bias",
     R"({"n_heads": 2, "block": 4, "stride": 2, "select_block": 4, "n_selected": 3, "window": 3,
        "position": "rope", "bias": {"q": true, "k": true, "v": true, "o": true}})"},
    {Slot::mixer, "compressed_attention", "",
     R"({"n_heads": 4, "head_dim": 6, "rope_head_dim": 4, "block": 3, "window": 4,
        "position": {"type": "rope", "layout": "interleaved"}})"},
    {Slot::mixer, "compressed_attention", "window_alone",
     R"({"n_heads": 2, "block": 0, "window": 3, "position": "rope", "sinks": true})"},
    {Slot::mixer, "compressed_attention", "chosen",
     R"({"n_heads": 4, "head_dim": 6, "rope_head_dim": 4, "q_lora_rank": 5, "block": 2, "overlap": true, "window": 3,
        "query_norm": {"type": "rms_norm", "weight": "none"}, "sinks": true, "o_groups": 2, "o_lora_rank": 3,
        "index": {"n_heads": 3, "head_dim": 5, "top_k": 2}, "position": {"type": "rope", "layout": "interleaved"}})"},
    // state-space, convolution, gated-recurrence and Fourier mixers
    {Slot::mixer, "mamba", "", R"({"d_state": 4})"},
    {Slot::mixer, "mamba", "normed",
     R"({"d_inner": 11, "d_state": 3, "dt_rank": 3, "d_conv": 3, "chunk": 3, "norm": "rms_norm"})"},
    {Slot::mixer, "mamba", "one_tap",
     R"({"d_state": 2, "d_conv": 1, "norm": {"type": "rms_norm", "weight": "none"}})"},
    {Slot::mixer, "mamba", "heads",
     R"({"d_inner": 12, "n_heads": 3, "d_state": 3, "dt_rank": 2, "chunk": 3, "norm": "rms_norm"})"},
    {Slot::mixer, "rg_lru", "", R"({"n_heads": 2})"},
    {Slot::mixer, "rg_lru", "wide", R"({"n_heads": 3, "width": 9, "d_conv": 2, "chunk": 3})"},
    {Slot::mixer, "rwkv4", "wide", R"({"width": 19})"},
    {Slot::mixer, "short_conv", "one_tap", R"({"d_conv": 1})"},
    {Slot::mixer, "convolution", "even", R"({"kernel": 4, "groups": 2, "act": "gelu"})"},
    {Slot::mixer, "convolution", "of_each_channel", R"({"groups": 8, "bias": false})"},
    {Slot::mixer, "fourier", "", R"({"max_length": 40})"},
    {Slot::mixer, "fourier", "blended", R"({"max_length": 40, "real": "each", "blend": 0.7})"},
    {Slot::mixer, "s4d", "", R"({"d_state": 6})"},
    {Slot::mixer, "s4", "", R"({"d_state": 6})"},
    // four channels of a head can be nearly equal: a larger eps keeps their norm well conditioned
    {Slot::mixer, "slstm", "", R"({"n_heads": 2, "norm_eps": 0.01})"},
    {Slot::mixer, "slstm", "no_conv", R"({"n_heads": 1, "d_conv": 0})"},
    {Slot::mixer, "gmlp", "", R"({"d_hidden": 10, "max_length": 40})"},
    // each sine layer of frequency 10 makes the third derivative, and with it the error of central
    // differences, about a thousand times larger: one hidden layer
    {Slot::mixer, "hyena", "", R"({"max_length": 40, "filter_width": 6, "filter_layers": 1})"},
    {Slot::mixer, "hyena", "third_order",
     R"({"max_length": 40, "order": 3, "filter_width": 5, "filter_layers": 1, "bands": 3})"},
    {Slot::mixer, "hyena", "shifted",
     R"({"max_length": 40, "filter_width": 6, "filter_layers": 0, "bands": 2, "shift": 0.05})"},
    // linear recurrences; small chunks, so that 17 tokens cross several
    // heads this narrow may be nearly zero: a larger eps keeps norms and quotients well conditioned
    {Slot::mixer, "retention", "", R"({"n_heads": 2, "norm_eps": 0.1})"},
    {Slot::mixer, "retention", "decay_learned",
     R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4, "decay": "learned", "decay_offset": 1, "norm_eps": 0.1})"},
    {Slot::mixer, "retention", "wide",
     R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4, "decay_offset": 1, "norm_weight": true, "norm_eps": 0.01})"},
    {Slot::mixer, "linear_attention", "", R"({"n_heads": 2, "eps": 0.1})"},
    {Slot::mixer, "linear_attention", "wide",
     R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4, "normaliser": false, "bias": true})"},
    {Slot::mixer, "linear_attention", "feature_identity",
     R"({"n_heads": 2, "feature": "identity"})"},
    {Slot::mixer, "linear_attention", "feature_hadamard",
     R"({"n_heads": 2, "key_dim": 3, "feature": "hadamard", "chunk": 4,
        "head_norm": {"type": "rms_norm", "eps": 1}})"},
    {Slot::mixer, "linear_attention", "tied_features_true",
     R"({"n_heads": 2, "feature": "hadamard", "tied_features": true,
        "head_norm": {"type": "rms_norm", "eps": 1}})"},
    {Slot::mixer, "linear_attention", "summed",
     R"({"n_heads": 2, "sum_norm_q": true, "sum_norm_k": true, "normaliser": false})"},
    {Slot::mixer, "linear_attention", "feature_softmax", R"({"n_heads": 2, "feature": "softmax"})"},
    {Slot::mixer, "gla", "", R"({"n_heads": 2, "decay_rank": 3, "temper": 2, "norm_eps": 0.01})"},
    {Slot::mixer, "gla", "wide",
     R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4, "decay_rank": 3, "temper": 0.1, "norm_eps": 0.01})"},
    {Slot::mixer, "delta_net", "", R"({"n_heads": 2, "norm_eps": 0.01})"},
    {Slot::mixer, "delta_net", "wide",
     R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4, "d_conv": 0, "gate": true, "norm_eps": 0.01})"},
    {Slot::mixer, "gated_delta_net", "", R"({"n_heads": 2, "norm_eps": 0.01})"},
    {Slot::mixer, "gated_delta_net", "grouped",
     R"({"n_heads": 4, "n_key_heads": 2, "key_dim": 3, "value_dim": 5, "chunk": 4, "d_conv": 3, "norm_eps": 0.01})"},
    {Slot::mixer, "gated_delta_net", "no_conv", R"({"n_heads": 2, "d_conv": 0, "norm_eps": 0.01})"},
    {Slot::mixer, "kda", "", R"({"n_heads": 2, "norm_eps": 0.01})"},
    {Slot::mixer, "kda", "bounded",
     R"({"n_heads": 2, "norm_eps": 0.01, "full_rank": true, "lower_bound": -2.5})"},
    {Slot::mixer, "kda", "wide",
     R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4, "d_conv": 1, "rank": 2, "norm_eps": 0.01})"},
    {Slot::mixer, "lightning_attention", "", R"({"n_heads": 2})"},
    {Slot::mixer, "lightning_attention", "wide",
     R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4})"},
    {Slot::mixer, "hgrn", "", "{}"},
    {Slot::mixer, "hgrn", "wide", R"({"width": 19, "chunk": 4, "d_conv": 3})"},
    {Slot::mixer, "hgrn2", "", R"({"n_heads": 2})"},
    {Slot::mixer, "hgrn2", "wide",
     R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4, "d_conv": 3})"},
    {Slot::mixer, "mlstm", "", R"({"n_heads": 2})"},
    {Slot::mixer, "mlstm", "wide",
     R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4, "gate_cap": 0})"},
    {Slot::mixer, "mlstm", "up_projection",
     R"({"n_heads": 2, "up_projection": {"block": 2}, "bias": true, "norm_eps": 0.01})"},
    {Slot::mixer, "mlstm", "up_projection_no_conv",
     R"({"n_heads": 3, "chunk": 4, "gate_cap": 2, "norm_eps": 0.01, "up_projection": {"d_inner": 12, "d_conv": 0}})"},
    {Slot::mixer, "rwkv5", "", R"({"n_heads": 2})"},
    {Slot::mixer, "rwkv5", "ungated", R"({"n_heads": 2, "gate": false})"},
    {Slot::mixer, "rwkv5", "wide", R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4})"},
    {Slot::mixer, "rwkv6", "", R"({"n_heads": 2, "mix_rank": 2, "decay_rank": 3})"},
    {Slot::mixer, "rwkv6", "wide",
     R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4, "mix_rank": 3, "decay_rank": 2})"},
    {Slot::mixer, "rwkv7", "",
     R"({"n_heads": 2, "decay_rank": 2, "rate_rank": 2, "value_rank": 3, "gate_rank": 3})"},
    {Slot::mixer, "rwkv7", "wide",
     R"({"n_heads": 3, "key_dim": 4, "value_dim": 5, "chunk": 4, "value_residual": false})"},
    {Slot::mixer, "rwkv_channel_mix", "narrow", R"({"d_hidden": 5})"},
    {Slot::mixer, "bidirectional", "", R"({"inner": {"type": "mamba", "d_state": 3, "chunk": 4}})"},
    {Slot::mixer, "bidirectional", "vision_mamba",
     R"({"inner": {"type": "mamba", "d_state": 3, "chunk": 4}, "share": ["in", "out"], "combine": "mean"})"},
    {Slot::mixer, "bidirectional", "combine_gate",
     R"({"inner": {"type": "gated_delta_net", "n_heads": 2, "norm_eps": 0.01}, "combine": "gate"})"},
    {Slot::mixer, "bidirectional", "of_values",
     R"({"inner": {"type": "rwkv7", "n_heads": 2, "decay_rank": 2, "rate_rank": 2, "value_rank": 3, "gate_rank": 3}})"},
    {Slot::mixer, "bidirectional", "of_bounds", R"({"inner": "hgrn", "combine": "concat"})"},
    {Slot::mixer, "bidirectional", "one_set",
     R"({"inner": {"type": "slstm", "n_heads": 2, "norm_eps": 0.01}, "share": ["*"], "combine": "concat"})"},
    // segments longer than the documents whose gradients are differentiated: a gradient that stops
    // at a memory is no derivative; the shorter ones say so in exceptions.cpp
    {Slot::mixer, "transformer_xl", "", R"({"n_heads": 2, "segment": 10, "mem_len": 6})"},
    {Slot::mixer, "transformer_xl", "short",
     R"({"n_heads": 3, "head_dim": 3, "segment": 3, "mem_len": 4, "position": {"type": "t5", "n_buckets": 6, "max_distance": 9}})"},
    {Slot::mixer, "compressive", "",
     R"({"n_heads": 2, "segment": 10, "mem_len": 3, "n_compressed": 4, "rate": 2, "compression": "mean"})"},
    {Slot::mixer, "compressive", "short",
     R"({"n_heads": 3, "head_dim": 3, "segment": 3, "mem_len": 4, "n_compressed": 2, "rate": 2, "distance": "scaled"})"},
    {Slot::mixer, "compressive", "compression_dilated_conv",
     R"({"n_heads": 2, "segment": 10, "mem_len": 3, "n_compressed": 4, "rate": 2,
        "compression": "dilated_conv", "dilation": 3})"},
    // one of twelve keys is left out: which, turns on rounding in 16 bits, and then matters little
    {Slot::mixer, "memorizing", "", R"({"n_heads": 2, "segment": 4, "memory": 12, "top_k": 11})"},
    {Slot::mixer, "memorizing", "cache",
     R"({"n_heads": 3, "head_dim": 3, "segment": 3, "mem_len": 4, "memory": 7, "top_k": 7})"},
    {Slot::mixer, "memorizing", "search_approximate",
     R"({"n_heads": 2, "segment": 4, "memory": 12, "top_k": 12, "search": "approximate", "n_hashes": 2, "n_buckets": 4})"},
    {Slot::mixer, "attention_experts", "", R"({"n_heads": 2, "position": "rope"})"},
    {Slot::mixer, "attention_experts", "windowed",
     R"({"n_heads": 2, "head_dim": 3, "n_experts": 5, "bias": true, "pattern": {"type": "window", "width": 5},
        "router": {"type": "top_k", "k": 3, "score": "softmax_of_chosen"}})"},
    {Slot::mixer, "infini_attention", "", R"({"n_heads": 2, "segment": 4, "position": "rope"})"},
    {Slot::mixer, "infini_attention", "grouped",
     R"({"n_heads": 4, "n_kv_heads": 2, "head_dim": 3, "segment": 3, "bias": {"q": true, "k": true, "v": true, "o": true}})"},
    {Slot::mixer, "infini_attention", "scored",
     R"({"n_heads": 2, "segment": 5, "update": "linear", "position": {"type": "shaw", "left": 3, "values": true}})"},
    {Slot::ffn, "glu", "last_biased", R"({"d_hidden": 7, "down_bias": true})"},
    {Slot::ffn, "glu", "clamped",
     R"({"d_hidden": 7, "bias": true, "slope": 1.702, "limit": 0.4, "up_offset": 1})"},
    {Slot::embed, "token", "everything",
     R"({"scale": 1.5, "position": {"type": "learned", "n_positions": 40}, "n_types": 3, "n_tasks": 2, "task": 1, "norm": "layer_norm"})"},
    {Slot::embed, "token", "projected",
     R"({"scale": 1.5, "position": {"type": "learned", "n_positions": 40}, "n_types": 3, "norm": "layer_norm", "width": 6, "project": "sum"})"},
    {Slot::embed, "token", "project_bias_false",
     R"({"position": {"type": "learned", "n_positions": 40}, "norm": "layer_norm", "width": 6, "project": "token", "project_bias": false})"},
    {Slot::embed, "token", "norm_of_token",
     R"({"position": {"type": "learned", "n_positions": 40}, "n_types": 3, "norm": "layer_norm", "norm_of": "token"})"},
    {Slot::embed, "patches", "",
     R"({"channels": 2, "patch": 3, "patch_width": 2, "position": {"type": "learned", "n_positions": 40}})"},
    {Slot::embed, "patches", "overlapping",
     R"({"channels": 1, "patch": 4, "stride": 2, "stride_width": 1, "norm": "layer_norm"})"},
    {Slot::embed, "patches", "of_one_height",
     R"({"channels": 1, "patch": 2, "height": 5, "bias": false})"},
    {Slot::embed, "frames", "",
     R"({"channels": 4, "position": {"type": "sinusoidal", "layout": "halves", "frequency": "t2t"}})"},
    {Slot::embed, "frames", "one_step",
     R"({"channels": 3, "kernel": 5, "strides": [1], "act": "relu"})"},
    {Slot::head, "tied", "scaled", R"({"scale": 0.5, "softcap": 3})"},
    {Slot::head, "tied", "biased", R"({"bias": true, "scale": 0.5})"},
    {Slot::head, "linear", "scaled", R"({"bias": true, "scale": 0.5, "softcap": 3})"},
    {Slot::head, "tied", "narrow", R"({"width": 6})"},
    {Slot::head, "masked_lm", "narrow", R"({"width": 6})"},
    {Slot::head, "masked_lm", "hidden",
     R"({"d_hidden": 5, "norm": null, "transform_bias": false})"},
    {Slot::head, "masked_lm", "rest", R"({"width": 6, "rest": 3})"},
    {Slot::head, "classifier", "", R"({"n_labels": 5})"},
    {Slot::head, "classifier", "of_tokens", R"({"n_labels": 3, "of": "tokens"})"},
    {Slot::head, "pooler", "gelu", R"({"act": "gelu"})"},
    {Slot::head, "classifier", "without_bias",
     R"({"n_labels": 2, "of": "tokens", "bias": false, "labels": ["no", "yes"]})"},
    {Slot::head, "pooler", "first_token", R"({"act": "identity", "dense": false})"},
    {Slot::head, "pooler", "mean", R"({"of": "mean"})"},
    {Slot::head, "pooler", "last", R"({"of": "last", "act": "relu"})"},
    {Slot::head, "pooler", "max", R"({"of": "max", "act": "identity", "dense": false})"},
    {Slot::head, "span", "without_bias", R"({"bias": false})"},
    {Slot::head, "token_score", "tanh", R"({"act": "tanh"})"},
    {Slot::head, "linear", "unit_rows_true", R"({"unit_rows": true, "scale": 0.5})"},
    {Slot::ffn, "linear", "bias_true", R"({"bias": true})"},
    {Slot::ffn, "linear", "identity_true", R"({"identity": true})"},
    {Slot::ffn, "chunked", "", R"({"chunk": 3, "inner": {"type": "glu", "d_hidden": 10}})"},
    {Slot::ffn, "chunked", "one_token",
     R"({"chunk": 1, "inner": {"type": "mlp", "d_hidden": 12, "act": "relu"}})"},
    {Slot::ffn, "moe", "", R"({"n_experts": 4, "expert": {"type": "glu", "d_hidden": 5}})"},
    {Slot::ffn, "moe", "shared_gate_true",
     R"({"n_experts": 4, "expert": {"type": "mlp", "d_hidden": 6}, "shared": {"type": "glu", "d_hidden": 5},
        "shared_gate": true, "scale": 1.5})"},
    {Slot::ffn, "moe", "bias_true",
     R"({"n_experts": 4, "expert": {"type": "glu", "d_hidden": 5}, "shared": {"type": "mlp", "d_hidden": 3}, "bias": true})"},
    {Slot::ffn, "moe", "in_a_space_of_their_own",
     R"({"n_experts": 4, "d_latent": 3, "expert": {"type": "mlp", "d_hidden": 6},
        "shared": {"type": "glu", "d_hidden": 5}})"},
    {Slot::ffn, "moe", "further_choices",
     R"({"n_experts": 3, "zero": 1, "identity": 2, "router": {"type": "top_k", "k": 4},
        "expert": {"type": "chunked", "chunk": 2, "inner": {"type": "glu", "d_hidden": 5, "bias": true}}})"},
    {Slot::ffn, "moe", "norms",
     R"({"n_experts": 4, "expert": {"type": "glu", "d_hidden": 5}, "shared": {"type": "mlp", "d_hidden": 3}, "router_norm": "rms_norm", "expert_norm": "rms_norm", "expert_out_norm": "rms_norm", "shared_norm": "rms_norm", "shared_out_norm": "layer_norm"})"},
    {Slot::ffn, "per_layer_embedding", "few", R"({"width": 3, "vocab": 5, "act": "gelu"})"},
    {Slot::router, "top_k", "scaled", R"({"k": 2, "logit_scale": 0.3, "expert_scale": true})"},
    // streams of clipped coefficients: others amplify how bf16 rounds the difference y - P_a
    {Slot::residual, "altup", "", R"({"streams": 3, "active": 1, "clip": 0.2})"},
    {Slot::residual, "altup", "laurel",
     R"({"streams": 3, "active": 1, "clip": 0.2, "laurel_rank": 3})"},
    {Slot::residual, "altup", "of_others", R"({"streams": 2, "of": "others"})"},
    {Slot::residual, "altup", "correct_scale_true",
     R"({"streams": 2, "of": "others", "correct_scale": true})"},
    {Slot::ffn, "glu", "sparse", R"({"d_hidden": 7, "sparsity": 0.5})"},
    {Slot::residual, "reordered", "gains", R"({"gain": "channel", "sum_gain": true})"},
    {Slot::ffn, "chunked", "experts",
     R"({"chunk": 3, "inner": {"type": "moe", "n_experts": 4, "expert": {"type": "glu", "d_hidden": 5}}})"},
    {Slot::norm, "group_norm", "groups", R"({"groups": 2, "eps": 0.01})"},
    {Slot::norm, "gated_norm", "narrow", R"({"rank": 3, "eps": 0.01})"},
    {Slot::norm, "dyt", "steep", R"({"alpha": 1.5})"},
    {Slot::ffn, "mlp", "learned_slope_true",
     R"({"d_hidden": 12, "act": "silu", "slope": 1.3, "learned_slope": true})"},
    {Slot::ffn, "mlp", "groups", R"({"d_hidden": 12, "groups": {"up": 4, "down": 2}})"},
    {Slot::ffn, "mlp", "inner_norm",
     R"({"d_hidden": 12, "act": "relu", "inner_norm": "layer_norm"})"},
    {Slot::ffn, "mlp", "slope", R"({"d_hidden": 12, "act": "silu", "slope": 1.7})"},
    {Slot::ffn, "glu", "inner_norm",
     R"({"d_hidden": 10, "inner_norm": {"type": "rms_norm", "eps": 0.01}})"},
    {Slot::ffn, "glu", "learned_slope_true",
     R"({"d_hidden": 10, "slope": 1.3, "learned_slope": true})"},
    {Slot::ffn, "xielu", "curved",
     R"({"d_hidden": 12, "bias": true, "alpha_p": 1.2, "alpha_n": 1.5})"},
    {Slot::mixer, "attention", "inner_norm",
     R"({"n_heads": 2, "n_kv_heads": 1, "head_dim": 6, "position": "rope", "inner_norm": "layer_norm"})"},
    {Slot::router, "top_k", "of_groups",
     R"({"k": 2, "score": "sigmoid", "balance": true, "n_groups": 2, "keep_groups": 1, "group_score": "sum_of_two"})"},
    {Slot::router, "top_k", "outside_groups_zero",
     R"({"k": 2, "score": "sigmoid", "balance": true, "n_groups": 2, "keep_groups": 1, "outside_groups": "zero"})"},
    {Slot::router, "top_k", "norm_of_two", R"({"k": 3, "norm": 2, "bias": true})"},
    {Slot::router, "top_k", "softcap", R"({"k": 3, "score": "sigmoid", "softcap": 0.5})"},
    {Slot::router, "top_k", "sigmoid_of_chosen",
     R"({"k": 3, "score": "sigmoid_of_chosen", "balance": true})"},
    {Slot::router, "top_k", "balance_true", R"({"k": 3, "score": "sigmoid", "balance": true})"},
    {Slot::router, "hash", "of_three_ids", R"({"ids": 3})"},
    // of one expert every weight is 1
    {Slot::router, "hash", "weights_softmax", R"({"k": 2, "weights": "softmax"})"},
    {Slot::router, "hash", "weights_sigmoid", R"({"k": 2, "weights": "sigmoid"})"},
    {Slot::router, "hash", "weights_sqrt_softplus", R"({"k": 2, "weights": "sqrt_softplus"})"},
    {Slot::router, "top_p", "", R"({"probability": 0.8})"},
    {Slot::router, "sparse_mixer", "", R"({"eps": 1})"},
    {Slot::residual, "reversible", "scaled", R"({"merge": "concat", "scale": 0.6})"},
    {Slot::residual, "post_norm", "deep", R"({"stream": 1.7, "scale": 0.6})"},
    {Slot::residual, "parallel", "scaled", R"({"norms": "each", "scale": 0.7})"},
    {Slot::residual, "pre_norm", "gain", R"({"gain": "channel", "gain_init": 0.3})"},
    {Slot::residual, "parallel", "gain", R"({"gain": "scalar", "gain_init": 0.3})"},
    {Slot::residual, "reversible", "gain", R"({"gain": "channel", "gain_init": 0.3})"},
    {Slot::depth, "mixture_of_depths", "", R"({"capacity": 0.5})"},
    {Slot::depth, "adaptive_computation", "early", R"({"threshold": 0.3})"},
    {Slot::depth, "mixture_of_depths", "mlp", R"({"capacity": 0.4, "predictor": "mlp"})"},
    {Slot::residual, "hyper_connections", "static", R"({"streams": 3, "dynamic": false})"},
    {Slot::residual, "manifold_hyper_connections", "unmixed",
     R"({"streams": 3, "mix": false, "magnitude": 1.5})"},
    {Slot::residual, "manifold_hyper_connections", "three", R"({"streams": 3, "iterations": 5})"},
    {Slot::residual, "gated_hyper_connections", "", R"({"streams": 3, "rank": 2})"},
    {Slot::residual, "gated_hyper_connections", "narrow", R"({"streams": 2, "rank": 1, "magnitude": 1.5, "scale": 0.7})"},
};

Json parse(const char* text) {
  return spec::parse_json(text, "sample");
}

/// {"type": name} with every required field, as far as the schema says what it is.
Json derived(const spec::Mechanism& mechanism, std::string& problem) {
  Json part = {{"type", mechanism.name}};
  const Json schema = mechanism.schema();
  for (const Json& required : schema["required"]) {
    const auto name = required.get<std::string>();
    const Json& property = schema["properties"][name];
    const std::string type = first_type(property);
    if (property.contains("enum"))
      part[name] = property["enum"][0];
    else if (type == "integer")
      part[name] = 4;
    else if (type == "number")
      part[name] = 2.0;
    else if (type == "boolean")
      part[name] = true;
    else if (type == "string")
      part[name] = "x";
    else
      problem = fmt::format("required field \"{}\" ({}) cannot be derived", name,
                            type.empty() ? "a part" : type);
  }
  return part;
}

/// The derived config, or the sample that stands in its place.
Json base_part(const spec::Mechanism& mechanism, std::string& problem) {
  Json base = derived(mechanism, problem);
  for (const Sample& sample : kSamples)
    if (sample.slot == mechanism.slot && mechanism.name == sample.mechanism &&
        *sample.label == '\0') {
      base.update(parse(sample.fields));
      problem.clear();
    }
  return base;
}

/// The slot of the parts that a property of a schema holds, nullopt where it holds none.
std::optional<Slot> slot_of(const Json& property) {
  if (property.contains("anyOf")) return slot_of(property["anyOf"][0]);
  const std::string ref = property.value("$ref", std::string());
  for (int s = 0; s < spec::kSlotCount; ++s)
    if (ref == std::string("#/$defs/") + spec::name_of(static_cast<Slot>(s)))
      return static_cast<Slot>(s);
  return std::nullopt;
}

/// Puts the part into the first field for its slot: of `json`, which has this schema, else of a
/// part in it. False where there is no such field.
bool place_within(Json& json, const Json& schema, Slot slot, const Json& part) {
  for (const auto& [name, property] : schema["properties"].items())
    if (slot_of(property) == slot) {
      json[name] = part;
      return true;
    }
  for (auto& [name, value] : json.items()) {
    const auto inner = slot_of(schema["properties"].value(name, Json::object()));
    if (inner && value.is_object() &&
        place_within(value,
                     spec::find_mechanism(*inner, value["type"].get<std::string>())->schema(), slot,
                     part))
      return true;
  }
  return false;
}

/// The same; where no part there has such a field, it comes with the first mechanism that has one.
void place(Json& json, const Json& schema, Slot slot, const Json& part) {
  if (place_within(json, schema, slot, part)) return;
  for (const spec::Mechanism& outer : spec::mechanisms()) {
    if (slot == Slot::router && outer.slot != Slot::ffn)
      continue;  // some mix tokens, for these alone
    std::string problem;
    Json around = base_part(outer, problem);
    if (place_within(around, outer.schema(), slot, part))
      return place(json, schema, outer.slot, around);
  }
  fail(ErrorKind::internal, "contract", "no mechanism has a field for slot {}", name_of(slot));
}

std::string label_of(const std::string& field, const Json& value) {
  return field + "_" + (value.is_string() ? value.get<std::string>() : value.dump());
}

/// One more part for every other value of a boolean or an enum, one level of nesting included.
std::vector<std::pair<std::string, Json>> variants(const spec::Mechanism& mechanism,
                                                   const Json& base,
                                                   const Json& completed) {
  std::vector<std::pair<std::string, Json>> out;
  const auto values_of = [](const Json& property) {
    return property.contains("enum")           ? property["enum"]
           : first_type(property) == "boolean" ? Json{false, true}
                                               : Json::array();
  };
  const Json schema = mechanism.schema();
  for (const auto& [name, property] : schema["properties"].items()) {
    if (!completed.contains(name)) continue;  // check_config says so
    for (const Json& value : values_of(property))
      if (completed[name] != value) {
        out.emplace_back(label_of(name, value), base);
        out.back().second[name] = value;
      }
    if (property.contains("properties"))
      for (const auto& [inner, inner_property] : property["properties"].items())
        for (const Json& value : values_of(inner_property))
          if (completed[name][inner] != value) {
            out.emplace_back(label_of(name + "_" + inner, value), base);
            out.back().second[name][inner] = value;
          }
  }
  return out;
}

/// Why a spec is refused, "" when it is not.
std::string refusal(const Json& json) {
  try {
    model::read_model_spec(json);
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

Case make_case(const spec::Mechanism& mechanism,
               const std::string& label,
               const Json& part,
               const std::string& problem) {
  Case c;
  c.mechanism = &mechanism;
  c.name = std::string(name_of(mechanism.slot)) + "_" + mechanism.name +
           (label.empty() ? "" : "_" + label);
  c.part = part;
  c.problem = problem;
  c.decoder = host(mechanism, part, "decoder");
  c.encoder = host(mechanism, part, "encoder");
  const std::string no_decoder = refusal(c.decoder);
  if (!refusal(c.encoder).empty()) c.encoder = nullptr;
  c.asked_whole = mechanism.slot == Slot::head && !c.encoder.is_null() && no_decoder.empty() &&
                  !spec::read_part(Slot::head, part, scope_for(mechanism, /*causal=*/false))
                       .as<nn::HeadConfig>()
                       .of_vocabulary();
  if (c.asked_whole) {
    c.encoder_only = true;
    c.decoder = std::exchange(c.encoder, nullptr);
    return c;
  }
  if (no_decoder.empty()) return c;
  if (!c.encoder.is_null() && no_decoder.find("needs an encoder") != std::string::npos) {
    c.encoder_only = true;
    c.decoder = std::exchange(c.encoder, nullptr);
    return c;
  }
  c.problem = fmt::format("{}; expected fields that fit (--config of `tessera verify`, or a sample of ({}, {}) in analysis/contract/cases.cpp): {}",
                          problem.empty() ? "the derived config is refused" : problem,
                          name_of(mechanism.slot), mechanism.name, no_decoder);
  return c;
}

std::vector<Case> make_cases() {
  nn::register_mechanisms();
  std::vector<Case> out;
  std::set<std::string> names;
  const auto add = [&](Case c) {
    if (names.insert(c.name).second) out.push_back(std::move(c));
  };
  for (const spec::Mechanism& mechanism : spec::mechanisms())
    for (Case& c : cases_of(mechanism)) add(std::move(c));
  for (const auto& [name, decoder] :
       {std::pair{"hybrid", hybrid()}, std::pair{"shared_blocks", shared_blocks()},
        std::pair{"per_layer", per_layer()}, std::pair{"ngram_memories", ngram_memories()}}) {
    Case mixed;
    mixed.name = name;
    mixed.decoder = decoder;
    add(mixed);
  }
  Case whole;
  whole.name = "whole_targets";
  whole.decoder = whole_targets();
  whole.encoder_only = true;  // its decoder promises nothing about its past
  add(whole);
  return out;
}

/// Tables of positions for documents of `length` tokens, and factors for every rotated pair.
void lengthen(Json& json, int64_t length) {
  constexpr size_t kPairs = kWide.width / kWide.heads / 2;
  for (auto& [name, value] : json.items())
    if (name == "short_factor" || name == "long_factor")
      value = Json(std::vector<Json>(kPairs, value[0]));
    else if ((name == "n_positions" || name == "max_length") && value.is_number_integer())
      value = std::max(value.get<int64_t>(), length);
    else if (value.is_structured())
      lengthen(value, length);
}

}  // namespace

std::vector<Case> cases_of(const spec::Mechanism& mechanism, const Json& fields) {
  std::vector<Case> out;
  std::set<std::string> names;
  const auto add = [&](Case c) {
    if (names.insert(c.name).second) out.push_back(std::move(c));
  };
  std::string problem, unused;
  const Json required = derived(mechanism, unused);
  Json base = base_part(mechanism, problem);
  base.update(fields);
  add(make_case(mechanism, "", base, fields.empty() ? problem : ""));
  out.back().chosen = true;
  if (!out.back().problem.empty()) return out;
  const Json completed =
      spec::dump_part(spec::read_part(mechanism.slot, base, scope_for(out.back())));
  // a sample named as a variant stands in its place
  for (const Sample& sample : kSamples)
    if (sample.slot == mechanism.slot && mechanism.name == sample.mechanism &&
        *sample.label != '\0') {
      Json part = required;
      part.update(parse(sample.fields));
      Case combined = make_case(mechanism, sample.label, part, "");
      combined.chosen = true;
      add(std::move(combined));
    }
  for (const auto& [label, part] : variants(mechanism, base, completed))
    add(make_case(mechanism, label, part, ""));
  return out;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = make_cases();
  return all;
}

spec::Scope scope_for(const Case& c) {
  return scope_for(*c.mechanism, !c.encoder_only);
}

spec::Scope scope_for(const spec::Mechanism& mechanism, bool causal, const Size& size) {
  const int64_t head = size.width / size.heads;
  spec::Scope scope;
  scope.d_model = size.width;
  scope.vocab = kVocab;
  scope.n_layers = 2;
  scope.width =
      mechanism.slot == Slot::rope_scaling || mechanism.info.place == spec::Place::rotation
          ? head
          : size.width;
  if (mechanism.info.place == spec::Place::score_bias) scope.width = head;
  scope.n_heads = size.heads;
  scope.n_experts = 4;
  scope.of_batch = true;
  // a mixer whose scores take a term rotates as well
  scope.places = {.embedding = mechanism.info.place == spec::Place::embedding,
                  .rotation = mechanism.info.place == spec::Place::rotation ||
                              mechanism.info.place == spec::Place::score_bias,
                  .score_bias = mechanism.info.place == spec::Place::score_bias};
  scope.causal = causal;
  scope.source = size.width;
  scope.path = "contract";
  return scope;
}

std::vector<Json> wide_specs(const Case& c, int64_t length) {
  const std::string arch = c.encoder_only ? "encoder" : "decoder";
  Json own = c.part;
  if (own.is_object()) lengthen(own, length);
  const Json example =
      spec::example_part(*c.mechanism, scope_for(*c.mechanism, !c.encoder_only, kWide), length);
  return {host(*c.mechanism, own, arch, kWide), host(*c.mechanism, example, arch, kWide)};
}

Json host(const spec::Mechanism& mechanism,
          const Json& part,
          const std::string& arch,
          const Size& size) {
  static const Json spec_schema = model::spec_schema();
  Json json = {{"tessera", 1},
               {"arch", arch},
               {"vocab", kVocab},
               {"d_model", size.width},
               {"head", "linear"},
               {"mixer",
                {{"type", "attention"},
                 {"n_heads", size.heads},
                 {"position", {{"type", "rope"}, {"theta", 100}}}}},
               {"ffn", {{"type", "mlp"}, {"d_hidden", size.hidden}, {"act", "gelu"}}},
               {"layers", parse(R"([{"repeat": 2}])")}};
  const auto is = [&](Slot slot, const char* name) {
    return mechanism.slot == slot && mechanism.name == name;
  };
  const bool merged = is(Slot::mixer, "merged_attention");
  if ((merged || is(Slot::mixer, "cross_attention")) && arch == "decoder") {
    json.erase("layers");
    json["arch"] = "encoder_decoder";
    json["start"] = 1;
    json["stacks"] =
        parse(R"({"encoder": {"layers": [{}]}, "decoder": {"layers": [{"repeat": 2}]}})");
    if (merged) json["stacks"]["encoder"]["mixer"] = json["mixer"];
    json[merged ? "mixer" : "cross"] = part;
    return json;
  }
  if (is(Slot::head, "classifier") && part.value("of", "pooled") == "pooled") {
    json.erase("head");
    json["heads"] = {part, "pooler"};
    return json;
  }
  place(json, spec_schema, mechanism.slot, part);
  // a gain on the whole stream, which the final norm must not take out again
  if (mechanism.slot == Slot::residual && part.is_object() && part.value("sum_gain", false))
    json["final_norm"] = {{"type", "rms_norm"}, {"eps", 0.5}};
  // a scheme acts in one place; where it adds to the embedding, nothing else tells the order
  if (mechanism.slot == Slot::position && (mechanism.info.place == spec::Place::embedding ||
                                           mechanism.info.place == spec::Place::nowhere))
    json["embed"] = {{"type", "token"}, {"position", part}};
  if (mechanism.info.place == spec::Place::embedding) json["mixer"]["position"] = "none";
  if (mechanism.slot == Slot::head && part.is_object() && part.contains("width"))
    json["embed"] = {{"type", "token"}, {"width", part["width"]}, {"project", "token"}};
  return json;
}

Json hybrid() {
  return spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 8, "head": "tied",
    "embed": {"type": "token", "scale": 1.5}, "ffn": {"type": "glu", "d_hidden": 10},
    "layers": [
      {"mixer": {"type": "mamba2", "n_heads": 2, "d_state": 3, "chunk": 4}, "ffn": null},
      {"share": "seen_twice", "mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 2, "position": "rope"}},
      {"residual": {"type": "parallel", "norms": "one"}, "norm": {"type": "layer_norm", "bias": false},
       "mixer": {"type": "attention", "n_heads": 2, "pattern": {"type": "window", "width": 3}, "position": {"type": "rope", "rotary_dim": 2}}},
      {"branches": [{"mixer": {"type": "mamba2", "n_heads": 4, "d_state": 2}, "residual": "sandwich"},
                    {"name": "second", "mixer": {"type": "attention", "n_heads": 2, "softcap": 4}},
                    {"ffn": {"type": "mlp", "d_hidden": 12, "act": "relu2"}}]}],
    "cycles": 2, "n_layers": 6})",
      "hybrid");
}

Json whole_targets() {
  return spec::parse_json(
      R"({"tessera": 1, "arch": "encoder_decoder", "vocab": 11, "d_model": 8, "head": "tied", "mask": 10,
    "mixer": {"type": "attention", "n_heads": 2, "position": {"type": "rope", "theta": 100}},
    "cross": {"type": "cross_attention", "n_heads": 2}, "ffn": {"type": "mlp", "d_hidden": 12, "act": "gelu"},
    "stacks": {"encoder": {"layers": [{}], "heads": [{"type": "classifier", "n_labels": 5}, {"type": "pooler", "of": "mean"}]},
               "decoder": {"layers": [{}, {"mixer": {"type": "bidirectional", "inner": {"type": "mamba2", "n_heads": 2, "d_state": 3, "chunk": 4}}}]}}})",
      "whole_targets");
}

Json per_layer() {
  return spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 8, "head": "tied", "embed": {"type": "token", "scale": 2.8},
    "layers": [
      {"branches": [
        {"residual": "sandwich", "mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1, "head_dim": 4, "scale": "one",
          "qk_norm": "rms_norm", "v_norm": {"type": "rms_norm", "weight": "none"}, "position": "rope",
          "pattern": {"type": "window", "width": 3}, "kv_name": "near"}},
        {"residual": "sandwich", "ffn": {"type": "glu", "d_hidden": 10}},
        {"name": "per_layer", "inputs": ["stream", "embedding"], "residual": {"type": "reordered", "sum_gain": true},
         "ffn": {"type": "per_layer_embedding", "width": 3, "vocab": 9}}]},
      {"branches": [
        {"residual": "sandwich", "mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1, "head_dim": 6, "scale": "one",
          "qk_norm": "rms_norm", "v_norm": {"type": "rms_norm", "weight": "none"}, "k_eq_v": true,
          "position": {"type": "p_rope", "fraction": 0.5}}},
        {"residual": "reordered", "ffn": {"type": "moe", "n_experts": 3, "expert": {"type": "glu", "d_hidden": 5},
          "router": {"type": "top_k", "k": 2, "logit_scale": 0.4, "expert_scale": true}, "shared": {"type": "glu", "d_hidden": 4},
          "router_norm": "rms_norm", "expert_norm": "rms_norm", "expert_out_norm": "rms_norm", "shared_norm": "rms_norm", "shared_out_norm": "rms_norm"}},
        {"name": "per_layer", "inputs": ["stream", "embedding"], "residual": {"type": "reordered", "sum_gain": true},
         "ffn": {"type": "per_layer_embedding", "width": 3, "vocab": 9}}]},
      {"branches": [
        {"residual": "sandwich", "mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1, "head_dim": 4, "scale": "one",
          "qk_norm": "rms_norm", "position": "rope", "pattern": {"type": "window", "width": 3}, "kv_of": "near"}},
        {"residual": {"type": "sandwich", "sum_gain": true}, "ffn": {"type": "glu", "d_hidden": 20}}]}]})",
      "per_layer");
}

Json ngram_memories() {
  return spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 8, "head": "linear",
    "residual": {"type": "gated_hyper_connections", "streams": 2, "rank": 3, "norm_weight": "plus_one"},
    "layers": [
      {"branches": [
        {"name": "memory", "residual": {"type": "gated_hyper_connections", "streams": 2, "rank": 3, "norm_weight": "plus_one", "reads": "all"},
         "mixer": {"type": "engram", "width": 4, "heads": 2, "rows": 6, "pad": 3, "cut": true, "d_conv": 2}},
        {"mixer": {"type": "gated_delta_net", "n_heads": 2, "key_dim": 3, "value_dim": 4, "gate_act": "sigmoid"}},
        {"ffn": {"type": "glu", "d_hidden": 10}}]},
      {"mixer": {"type": "attention", "n_heads": 2, "position": "rope", "gate": "elementwise",
                 "select": {"type": "pooled_indexer", "n_heads": 2, "head_dim": 4, "size": 2, "top_k": 2, "kl_loss": 0}},
       "ffn": {"type": "glu", "d_hidden": 10}}]})",
      "ngram_memories");
}

Json shared_blocks() {
  return spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 11, "d_model": 8, "head": "linear",
    "layers": [
      {"branches": [
        {"name": "block", "share": "one", "inputs": ["stream", "embedding"], "residual": null,
         "mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 6, "position": "rope"},
         "adapters": [{"rank": 2, "of": ["q"]}, {"rank": 3, "of": ["k", "v"]}]},
        {"name": "block_ffn", "share": "one", "inputs": ["block"], "residual": null,
         "ffn": {"type": "glu", "d_hidden": 10}, "adapters": [{"rank": 2, "of": ["gate", "up"]}]},
        {"name": "linear", "inputs": ["block_ffn"], "norm": null, "residual": null, "ffn": "linear"},
        {"mixer": {"type": "mamba", "d_inner": 12, "n_heads": 2, "d_state": 3, "chunk": 4},
         "add": ["linear"], "adapters": [{"rank": 2, "of": ["select"]}, {"rank": 2, "of": ["out"]}]}]},
      {"mixer": {"type": "attention", "n_heads": 2}, "ffn": {"type": "mlp", "d_hidden": 12}}],
    "cycles": 2, "n_layers": 3})",
      "shared_blocks");
}

}  // namespace tessera::contract
