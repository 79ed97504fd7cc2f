// An option that changes nothing beside the others is refused, in one line that says so.
#include <gtest/gtest.h>

#include "tessera/base/testing.h"
#include "tessera/nn/registry.h"
#include "tessera/spec/fields.h"

namespace tessera::nn::idle_options_plain_test {
namespace {

using spec::Slot;

struct Idle {
  Slot slot;
  const char* given;    // JSON of the part
  const char* refused;  // a part of the message
  const char* taken;    // the same where the option has an effect
  bool causal = true;
};

const Idle kIdle[] = {
    // attention
    {Slot::mixer, R"({"type": "attention", "n_heads": 2, "scale_value": 3})",
     "scale_value = 3 with scale rsqrt_head_dim, which takes no number",
     R"({"type": "attention", "n_heads": 2, "scale": "value", "scale_value": 3})"},
    {Slot::mixer, R"({"type": "attention", "n_heads": 2, "scale": "one", "scale_value": 3})",
     "scale_value = 3 with scale one",
     R"({"type": "attention", "n_heads": 2, "scale": "learned", "scale_value": 3})"},
    {Slot::mixer, R"({"type": "attention", "n_heads": 2, "temperature": {"floor": 3}})",
     "floor and offset without a scale",
     R"({"type": "attention", "n_heads": 2, "temperature": {"scale": 0.1, "floor": 3}})"},
    {Slot::mixer, R"({"type": "attention", "n_heads": 2, "temperature": {"offset": 0}})",
     "floor and offset without a scale",
     R"({"type": "attention", "n_heads": 2, "temperature": {"scale": 0.1, "offset": 0}})"},
    {Slot::mixer, R"({"type": "attention", "n_heads": 2, "qk_norm_over": "projection"})",
     "qk_norm_over projection without a qk_norm",
     R"({"type": "attention", "n_heads": 2, "qk_norm_over": "projection", "qk_norm": "rms_norm"})"},
    {Slot::mixer,
     R"({"type": "attention", "n_heads": 2, "qk_norm_at": "after_rotation", "position": "rope"})",
     "qk_norm_at after_rotation without a qk_norm",
     R"({"type": "attention", "n_heads": 2, "qk_norm_at": "after_rotation", "position": "rope",
        "qk_norm": "rms_norm"})"},
    {Slot::mixer,
     R"({"type": "attention", "n_heads": 2, "qk_norm_at": "after_rotation", "qk_norm": "rms_norm",
        "position": "alibi"})",
     "position \"alibi\" rotates nothing",
     R"({"type": "attention", "n_heads": 2, "qk_norm": "rms_norm", "position": "alibi"})"},
    {Slot::mixer, R"({"type": "attention", "n_heads": 2, "scale_on": "query", "scale": "one"})",
     "scale_on query with scale one: there is no factor",
     R"({"type": "attention", "n_heads": 2, "scale_on": "query"})"},
    {Slot::mixer, R"({"type": "attention", "n_heads": 2, "scale_on": "query", "scale": "learned"})",
     "a learned factor is always on the queries",
     R"({"type": "attention", "n_heads": 2, "scale": "learned"})"},
    // its relatives
    {Slot::mixer,
     R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 4, "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2, "q_latent_scale": 2})",
     "q_latent_scale = 2 without a query latent",
     R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 4, "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2, "q_latent_scale": 2, "q_lora_rank": 3})"},
    {Slot::mixer, R"({"type": "kda", "n_heads": 2, "rank": 3, "full_rank": true})",
     "rank = 3 with full_rank", R"({"type": "kda", "n_heads": 2, "full_rank": true})"},
    {Slot::mixer, R"({"type": "gau", "max_length": 8})",
     "max_length = 8 without divisor max_length",
     R"({"type": "gau", "divisor": "max_length", "max_length": 8})"},
    {Slot::mixer, R"({"type": "gau", "weights": "softmax", "divisor": "max_length"})",
     "divisor max_length with weights softmax, which has no divisor",
     R"({"type": "gau", "weights": "softmax"})"},
    {Slot::mixer, R"({"type": "multi_level_attention", "n_heads": 2, "pool_hidden": 8})",
     "pool_hidden = 8 with pool mean, which has no hidden layer",
     R"({"type": "multi_level_attention", "n_heads": 2, "pool": "mlp", "pool_hidden": 8})"},
    {Slot::mixer, R"({"type": "multi_level_attention", "n_heads": 2, "source": "cascade"})",
     "source cascade with pool mean",
     R"({"type": "multi_level_attention", "n_heads": 2, "source": "cascade", "pool": "conv"})"},
    {Slot::mixer,
     R"({"type": "multi_level_attention", "n_heads": 2, "combine": "gated", "count_bias": false})",
     "count_bias = false with combine gated",
     R"({"type": "multi_level_attention", "n_heads": 2, "count_bias": false})"},
    {Slot::mixer, R"({"type": "multi_level_attention", "n_heads": 2, "mode": "overlap"})",
     "mode overlap in an encoder", R"({"type": "multi_level_attention", "n_heads": 2})", false},
    {Slot::mixer, R"({"type": "multi_level_attention", "n_heads": 2, "grid": {"first": 1}})",
     "grid.first = 1 without rows and columns",
     R"({"type": "multi_level_attention", "n_heads": 2, "ratios": [1, 2], "windows": [3],
         "grid": {"rows": 4, "columns": 5, "first": 1}})",
     false},
    {Slot::mixer,
     R"({"type": "multi_level_attention", "n_heads": 2, "ratios": [1, 2, 4], "windows": [3, 5],
         "grid": {"rows": 4, "columns": 5}})",
     "windows has 2 numbers; expected 1",
     R"({"type": "multi_level_attention", "n_heads": 2, "ratios": [1, 2, 4], "windows": [3],
         "grid": {"rows": 4, "columns": 5}})",
     false},
    {Slot::mixer, R"({"type": "lsh_attention", "n_heads": 2, "n_buckets": [4], "max_length": 64})",
     "max_length = 64 with n_buckets",
     R"({"type": "lsh_attention", "n_heads": 2, "max_length": 64})"},
    {Slot::mixer, R"({"type": "local_attention", "n_heads": 2, "pad_to": 128})",
     "pad_to = 128 needs an encoder", R"({"type": "local_attention", "n_heads": 2})"},
    {Slot::mixer,
     R"({"type": "performer", "n_heads": 2, "features": "relu_deterministic", "n_features": 9})",
     "relu_deterministic has none",
     R"({"type": "performer", "n_heads": 2, "features": "relu_deterministic"})"},
    {Slot::mixer,
     R"({"type": "performer", "n_heads": 2, "features": "relu_deterministic", "seed": 9})",
     "relu_deterministic has none", R"({"type": "performer", "n_heads": 2, "seed": 9})"},
    {Slot::mixer,
     R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 4, "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 0, "scale_value": 3})",
     "scale_value = 3 with scale rsqrt_head_dim",
     R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 4, "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 0, "scale": "value", "scale_value": 3})"},
    {Slot::mixer,
     R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 4, "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 0, "temperature": {"offset": 0}})",
     "floor and offset without a scale",
     R"({"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 4, "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 0, "temperature": {"scale": 0.1, "offset": 0}})"},
    {Slot::mixer,
     R"({"type": "compressive", "n_heads": 2, "segment": 4, "mem_len": 4, "n_compressed": 2,
        "compression": "mean", "reconstruction": 3})",
     "reconstruction = 3 with compression mean, which has nothing to learn",
     R"({"type": "compressive", "n_heads": 2, "segment": 4, "mem_len": 4, "n_compressed": 2,
        "reconstruction": 3})"},
    {Slot::mixer,
     R"({"type": "compressive", "n_heads": 2, "segment": 4, "mem_len": 4, "n_compressed": 0,
        "rate": 2})",
     "are of a compressed memory, and n_compressed = 0",
     R"({"type": "compressive", "n_heads": 2, "segment": 4, "mem_len": 4, "n_compressed": 2,
        "rate": 2})"},
    {Slot::mixer,
     R"({"type": "compressive", "n_heads": 2, "segment": 4, "mem_len": 4, "n_compressed": 0,
        "distance": "scaled"})",
     "are of a compressed memory, and n_compressed = 0",
     R"({"type": "compressive", "n_heads": 2, "segment": 4, "mem_len": 4, "n_compressed": 0})"},
    {Slot::mixer,
     R"({"type": "attention", "n_heads": 2, "position": {"type": "shaw", "left": 4, "right": 9}})",
     "shaw with right = 9 needs an encoder: in a decoder no key is after its query",
     R"({"type": "attention", "n_heads": 2, "position": {"type": "shaw", "left": 4, "right": 0}})"},
    // recurrences, state spaces, transforms
    {Slot::mixer, R"({"type": "mamba2", "n_heads": 2, "norm_groups": 0, "norm_eps": 0.1})",
     "norm_eps = 0.1 without a norm", R"({"type": "mamba2", "n_heads": 2, "norm_eps": 0.1})"},
    {Slot::mixer, R"({"type": "retention", "n_heads": 2, "angles": "none", "theta": 9})",
     "theta = 9 without angles", R"({"type": "retention", "n_heads": 2, "theta": 9})"},
    {Slot::mixer, R"({"type": "linear_attention", "n_heads": 2, "tied_features": true})",
     "tied_features with feature elu1",
     R"({"type": "linear_attention", "n_heads": 2, "feature": "hadamard", "tied_features": true})"},
    {Slot::mixer, R"({"type": "linear_attention", "n_heads": 2, "normaliser": false, "eps": 0.1})",
     "eps = 0.1 without a normaliser", R"({"type": "linear_attention", "n_heads": 2, "eps": 0.1})"},
    {Slot::mixer, R"({"type": "rwkv7", "n_heads": 2, "value_residual": false, "value_rank": 3})",
     "value_rank = 3 without a value_residual",
     R"({"type": "rwkv7", "n_heads": 2, "value_rank": 3})"},
    {Slot::mixer, R"({"type": "fourier", "seed": 3})",
     "seed = 3 with transform fourier, which draws nothing",
     R"({"type": "fourier", "transform": "random", "max_length": 8, "seed": 3})", false},
    // the rest of a layer
    {Slot::ffn, R"({"type": "glu", "d_hidden": 4, "act": "relu", "slope": 2})",
     "slope = 2 with act relu", R"({"type": "glu", "d_hidden": 4, "slope": 2})"},
    {Slot::ffn, R"({"type": "glu", "d_hidden": 4, "bias": true, "down_bias": true})",
     "down_bias together with bias", R"({"type": "glu", "d_hidden": 4, "down_bias": true})"},
    {Slot::embed, R"({"type": "token", "task": 1})", "task = 1 of 0 tasks",
     R"({"type": "token", "n_tasks": 2, "task": 1})"},
    {Slot::embed, R"({"type": "token", "mask_share": 0.12})", "mask_share = 0.12 without mask_id",
     R"({"type": "token", "mask_id": 3, "mask_share": 0.12})", false},
    {Slot::embed, R"({"type": "token", "project_bias": false})",
     "project_bias = false without a projection",
     R"({"type": "token", "project": "sum", "project_bias": false})"},
    // patterns
    {Slot::pattern, R"({"type": "big_bird", "draw": "first_block", "seed": 3})",
     "seed = 3 and nothing is drawn by it: draw is first_block",
     R"({"type": "big_bird", "seed": 3})"},
    {Slot::pattern, R"({"type": "big_bird", "random": 0, "seed": 3})", "random 0; leave it out",
     R"({"type": "big_bird", "random": 0})"},
    {Slot::pattern, R"({"type": "big_bird", "random": 0, "draw": "first_block"})",
     "draw first_block with random = 0", R"({"type": "big_bird", "draw": "first_block"})"},
    {Slot::pattern, R"({"type": "random", "block": 4, "blocks": 0, "seed": 3})",
     "seed = 3 with blocks = 0", R"({"type": "random", "block": 4, "seed": 3})"},
    {Slot::pattern, R"({"type": "fixed", "stride": 4, "self": false})",
     "self = false with combine merged",
     R"({"type": "fixed", "stride": 4, "self": false, "combine": "multihead"})"},
    {Slot::pattern, R"({"type": "dilated", "segments": [4], "dilations": [1], "offset": "blocks"})",
     "offset blocks where all dilations are 1",
     R"({"type": "dilated", "segments": [4], "dilations": [2], "offset": "blocks"})"},
    {Slot::pattern, R"({"type": "prefix"})", "prefix in an encoder", R"({"type": "full"})", false},
    // positions
    {Slot::position, R"({"type": "tupe", "n_positions": 9, "max_distance": 9})",
     "max_distance = 9 without buckets",
     R"({"type": "tupe", "n_positions": 9, "max_distance": 9, "buckets": 8})"},
    {Slot::position, R"({"type": "decoupled", "variant": "diet_rel", "rank": 3})",
     "rank = 3 with variant diet_rel", R"({"type": "decoupled", "rank": 3})"},
    {Slot::position, R"({"type": "decoupled", "variant": "diet_rel", "n_positions": 9})",
     "n_positions = 9 with variant diet_rel", R"({"type": "decoupled", "n_positions": 9})"},
    {Slot::position, R"({"type": "decoupled", "max_distance": 9})",
     "max_distance = 9 with variant diet_abs",
     R"({"type": "decoupled", "variant": "diet_rel", "max_distance": 9})"},
    {Slot::position, R"({"type": "decoupled", "variant": "untied", "rank": 3})",
     "rank = 3 with variant untied", R"({"type": "decoupled", "variant": "untied"})"},
    {Slot::position, R"({"type": "decoupled", "variant": "decoupled_rope", "share": "all"})",
     "share \"all\" with variant decoupled_rope",
     R"({"type": "decoupled", "variant": "decoupled_rope"})"},
    {Slot::rope_scaling,
     R"({"type": "yarn", "factor": 4, "original_length": 64, "attention_factor": 2, "mscale": 1, "mscale_all_dim": 1})",
     "attention_factor = 2 and mscale = 1, mscale_all_dim = 1",
     R"({"type": "yarn", "factor": 4, "original_length": 64, "mscale": 1, "mscale_all_dim": 1})"},
    {Slot::rope_scaling, R"({"type": "yarn", "factor": 4, "original_length": 64, "mscale": 1})",
     "give both, or neither",
     R"({"type": "yarn", "factor": 4, "original_length": 64, "attention_factor": 2})"},
    {Slot::rope_scaling,
     R"({"type": "longrope", "short_factor": [1, 1], "long_factor": [2, 2], "original_length": 64,
        "factor": 4, "attention_factor": 2})",
     "factor = 4 and attention_factor = 2",
     R"({"type": "longrope", "short_factor": [1, 1], "long_factor": [2, 2], "original_length": 64,
        "attention_factor": 2})"},
};

spec::Scope scope_of(const Idle& idle) {
  register_mechanisms();
  spec::Scope scope;
  scope.d_model = 8;
  scope.vocab = 9;
  scope.width = 4;
  scope.n_heads = 2;
  scope.causal = idle.causal;
  scope.places = {.embedding = true, .rotation = true, .score_bias = true};
  scope.path = "part";
  return scope;
}

TEST(IdleOptions, AreRefused) {
  for (const Idle& idle : kIdle) {
    SCOPED_TRACE(idle.given);
    const spec::Scope scope = scope_of(idle);
    const auto read = [&](const char* json) {
      return spec::read_part(idle.slot, spec::parse_json(json, "test"), scope);
    };
    test::expect_error(ErrorKind::spec, idle.refused, [&] { read(idle.given); });
    // where the option has an effect it is taken, and what is dumped can be read again
    EXPECT_NO_THROW({
      const spec::Json dumped = spec::dump_part(read(idle.taken));
      EXPECT_EQ(spec::dump_part(spec::read_part(idle.slot, dumped, scope)), dumped);
    });
  }
}

TEST(IdleOptions, AFactorOfPartsOfAHeadIsReadByTheScale) {
  const Idle idle{Slot::rope_scaling, "", "", ""};
  spec::Scope scope = scope_of(idle);
  const auto read = [&](const char* json) {
    spec::read_part(Slot::rope_scaling, spec::parse_json(json, "test"), scope);
  };
  const char* alone =
      R"({"type": "yarn", "factor": 4, "original_length": 64, "mscale_all_dim": 1})";
  const char* beside =
      R"({"type": "yarn", "factor": 4, "original_length": 64, "mscale_all_dim": 1, "attention_factor": 2})";
  EXPECT_THROW(read(alone), Error);
  EXPECT_THROW(read(beside), Error);
  scope.rotated = 4;  // as latent_attention says
  EXPECT_NO_THROW(read(alone));
  EXPECT_NO_THROW(read(beside));
}

}  // namespace
}  // namespace tessera::nn::idle_options_plain_test
