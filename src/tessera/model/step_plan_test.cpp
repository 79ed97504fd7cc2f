// Calls of few tokens without tensors, against the parts themselves: the same bits.
#include "tessera/model/step_plan.h"

#include <gtest/gtest.h>

#include <array>

#include "tessera/base/threads.h"
#include "tessera/nn/ffn/glu.h"
#include "tessera/nn/ffn/mlp.h"
#include "tessera/nn/ffn/moe.h"
#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/nn/mixer/attention/attention_calls.h"
#include "tessera/nn/mixer/attention/compressed_attention.h"
#include "tessera/nn/mixer/attention/latent_attention.h"
#include "tessera/nn/mixer/convolution/engram.h"
#include "tessera/nn/mixer/linear/delta_net.h"
#include "tessera/nn/mixer/linear/gated_delta_net.h"
#include "tessera/nn/mixer/linear/kda.h"
#include "tessera/nn/mixer/linear/retention.h"
#include "tessera/nn/mixer/linear/rwkv5.h"
#include "tessera/nn/mixer/linear/rwkv6.h"
#include "tessera/nn/mixer/linear/rwkv7.h"
#include "tessera/nn/mixer/linear/rwkv_channel_mix.h"
#include "tessera/nn/mixer/scan/mamba2.h"
#include "tessera/nn/norm/layer_norm.h"
#include "tessera/nn/norm/rms_norm.h"
#include "tessera/nn/pattern/window.h"
#include "tessera/nn/position/m_rope.h"
#include "tessera/nn/position/p_rope.h"
#include "tessera/nn/position/rope.h"
#include "tessera/nn/position/xpos.h"
#include "tessera/nn/residual/parallel.h"
#include "tessera/nn/residual/post_norm.h"
#include "tessera/nn/residual/pre_norm.h"
#include "tessera/nn/residual/reordered.h"
#include "tessera/nn/residual/sandwich.h"
#include "tessera/nn/router/top_k.h"
#include "tessera/nn/select/indexer.h"
#include "tessera/model/model.h"
#include "tessera/model/stack.h"

namespace tessera::model::step_plan_test {
namespace {

constexpr int64_t kVocab = 43, kIdsBefore = 4;

/// `layers` and what else a spec says.
ModelSpec spec_of(const std::string& rest) {
  return read_model_spec(spec::parse_json(
      R"({"tessera": 1, "arch": "decoder", "vocab": 43, "d_model": 64, "head": "tied", )" + rest +
          "}",
      "test"));
}

const std::string kLlama = R"("layers": [{"repeat": 3,
    "mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 2, "position": "rope"}}],
  "ffn": {"type": "glu", "d_hidden": 96})";

/// Layers of plain attention with this feed-forward layer.
std::string with_ffn(const std::string& ffn) {
  return R"("layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4,
      "n_kv_heads": 2, "position": "rope"}}], "ffn": )" +
         ffn;
}
const std::string kMixtral = with_ffn(R"({"type": "moe", "n_experts": 6,
    "expert": {"type": "glu", "d_hidden": 96}})");
const std::string kDeepseek = R"("layers": [{"repeat": 2, "mixer": {"type": "latent_attention",
    "n_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "position": "rope"}}],
  "ffn": {"type": "glu", "d_hidden": 96})";
const std::string kSparse = R"("layers": [
    {"mixer": {"type": "latent_attention", "n_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 64,
      "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "position": "rope",
      "select": {"type": "indexer", "n_heads": 3, "head_dim": 32, "top_k": 6, "name": "first"}}},
    {"mixer": {"type": "latent_attention", "n_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 64,
      "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32, "position": "rope",
      "select": {"type": "indexer", "top_k": 6, "share": "first"}}},
    {"mixer": {"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 32,
      "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "position": "rope",
      "select": {"type": "indexer", "n_heads": 2, "head_dim": 32, "top_k": 9, "rotated": "last",
        "layout": "interleaved", "norm_eps": 1e-3}}},
    {"mixer": {"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 32,
      "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "position": "rope"}}],
  "ffn": {"type": "glu", "d_hidden": 96})";

/// DeepSeek-V4: windows and entries, chosen or all of them.
const std::string kCompressed = R"("layers": [
    {"mixer": {"type": "compressed_attention", "n_heads": 4, "head_dim": 24, "rope_head_dim": 16,
      "q_lora_rank": 32, "query_norm": "rms_norm", "window": 5, "block": 2, "overlap": true,
      "index": {"n_heads": 2, "head_dim": 32, "top_k": 4}, "sinks": true, "position": "rope",
      "o_groups": 2, "o_lora_rank": 16}},
    {"mixer": {"type": "compressed_attention", "n_heads": 2, "head_dim": 32, "q_lora_rank": 32,
      "window": 4, "block": 6, "position": {"type": "rope", "layout": "interleaved"}}},
    {"mixer": {"type": "compressed_attention", "n_heads": 2, "window": 7, "block": 0,
      "norm": null, "sinks": true}},
    {"mixer": {"type": "compressed_attention", "n_heads": 2, "window": 3, "block": 3,
      "index": {"n_heads": 3, "head_dim": 32, "top_k": 1}, "o_lora_rank": 32,
      "position": "rope"}}],
  "ffn": {"type": "glu", "d_hidden": 96})";

const std::string kEngram = R"("layers": [
    {"mixer": {"type": "engram", "heads": 2, "width": 32, "cut": true, "pad": 3, "d_conv": 3}},
    {"mixer": {"type": "attention", "n_heads": 4, "position": "rope"}},
    {"mixer": {"type": "engram", "ngram": 2, "heads": 2, "index": 1, "d_conv": 1, "bias": true,
      "norm_weight": "plus_one"}}],
  "ffn": {"type": "glu", "d_hidden": 96})";

/// Specs whose layers a plan takes.
std::map<std::string, std::string> known() {
  return {
      {"llama", kLlama},
      {"qwen", R"("layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 6,
          "n_kv_heads": 1, "head_dim": 16, "bias": {"q": true, "k": true, "v": true},
          "qk_norm": {"type": "rms_norm"}, "position": {"type": "rope", "rotary_dim": 8}}}],
          "ffn": {"type": "glu", "d_hidden": 160, "bias": true})"},
      {"gemma", R"("norm": {"type": "rms_norm", "weight": "plus_one"}, "residual": "sandwich",
          "embed": {"type": "token", "scale": 8},
          "layers": [
            {"mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1, "scale": "rsqrt_of",
              "scale_value": 24, "scale_on": "query", "softcap": 5, "position": {"type": "rope", "theta": 1000},
              "pattern": {"type": "window", "width": 5}}},
            {"mixer": {"type": "attention", "n_heads": 2, "n_kv_heads": 1, "softcap": 5,
              "position": {"type": "rope", "theta": 100000, "layout": "interleaved"}}}],
          "cycles": 2, "ffn": {"type": "glu", "act": "gelu_tanh", "d_hidden": 96})"},
      {"gpt2",
       R"("norm": "layer_norm", "embed": {"type": "token", "position": {"type": "learned", "n_positions": 64}},
          "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4,
            "bias": {"q": true, "k": true, "v": true, "o": true}}}],
          "ffn": {"type": "mlp", "act": "gelu", "d_hidden": 128, "bias": true})"},
      {"olmo", R"("residual": {"type": "pre_norm", "scale": 0.5},
          "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4, "sinks": true,
            "qk_norm": {"type": "rms_norm"}, "qk_norm_over": "projection", "position": "rope"}}],
          "ffn": {"type": "glu", "d_hidden": 96})"},
      {"hunyuan", R"("layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4,
            "n_kv_heads": 2, "qk_norm": "rms_norm", "qk_norm_at": "after_rotation",
            "position": "rope", "temperature": {"scale": 0.5, "floor": 3}}}],
          "ffn": {"type": "glu", "d_hidden": 96})"},
      {"bare",
       R"("norm": null, "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4,
          "position": "rope"}}], "ffn": {"type": "mlp", "act": "relu2", "d_hidden": 64},
          "final_norm": "rms_norm")"},
      {"turns", R"("layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4,
          "position": {"type": "rope", "scaling": {"type": "linear", "factor": 4}}},
          "ffn": null}, {"ffn": {"type": "mlp", "d_hidden": 64}, "mixer": null}])"},
      {"neox", R"("norm": "layer_norm", "residual": {"type": "parallel", "norms": "each"},
          "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4,
            "position": {"type": "p_rope"}}}], "ffn": {"type": "mlp", "d_hidden": 96})"},
      {"gptj", R"("norm": "layer_norm", "residual": "parallel",
          "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4, "clip": 0.5,
            "position": {"type": "rope", "layout": "interleaved"}}}],
          "ffn": {"type": "mlp", "d_hidden": 96, "slope": 1.5})"},
      {"bert_like", R"("residual": {"type": "post_norm", "stream": 1.5, "gain": "channel"},
          "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4, "position": "xpos"}}],
          "ffn": {"type": "mlp", "d_hidden": 96, "inner_norm": "rms_norm"})"},
      {"olmo2", R"("residual": {"type": "reordered", "gain": "scalar", "gain_init": 0.5},
          "layers": [{"repeat": 2, "mixer": {"type": "attention", "n_heads": 4,
            "n_kv_heads": 2, "qk_norm": "layer_norm", "qk_norm_over": "each_head",
            "v_norm": "rms_norm", "position": "rope", "gate": "elementwise"}}],
          "ffn": {"type": "glu", "d_hidden": 96, "slope": 1.7, "limit": 0.7, "up_offset": 1})"},
      {"gemma4", R"("residual": {"type": "sandwich", "sum_gain": true},
          "layers": [
            {"mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 8, "scale": "one",
              "qk_norm": "rms_norm", "v_norm": {"type": "rms_norm", "weight": "none"}, "position": "rope",
              "pattern": {"type": "window", "width": 9}}},
            {"mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 1, "head_dim": 32, "scale": "one",
              "qk_norm": "rms_norm", "v_norm": {"type": "rms_norm", "weight": "none"}, "k_eq_v": true,
              "position": {"type": "p_rope", "fraction": 0.25}}}],
          "ffn": {"type": "glu", "act": "gelu_tanh", "d_hidden": 96})"},
      {"values", R"("layers": [
            {"mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 2, "head_dim": 24, "v_head_dim": 16,
              "position": {"type": "rope", "rotary_dim": 8}, "sinks": true, "clip": 1.5,
              "pattern": {"type": "window", "width": 9}, "gate": "elementwise", "inner_norm": "rms_norm"}},
            {"mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 1, "head_dim": 8, "v_head_dim": 32,
              "position": "rope", "v_norm": "rms_norm"}}],
          "ffn": {"type": "glu", "d_hidden": 96})"},
      {"gates", R"("layers": [
            {"mixer": {"type": "attention", "n_heads": 4, "n_kv_heads": 2, "gate": "headwise",
              "gate_at": "after_value", "gate_act": "silu", "gate_bias": true}},
            {"mixer": {"type": "attention", "n_heads": 4, "gate": "elementwise",
              "gate_at": "after_o", "scale": "learned_headwise", "inner_norm": "rms_norm",
              "temperature": {"scale": 0.5, "floor": 3}}}],
          "ffn": {"type": "glu", "d_hidden": 96})"},
      {"mixtral", kMixtral},
      {"deepseek moe", with_ffn(R"({"type": "moe", "n_experts": 8, "scale": 2.5,
          "router": {"type": "top_k", "k": 3, "score": "sigmoid", "balance": true,
            "n_groups": 4, "keep_groups": 2, "group_score": "sum_of_two"},
          "expert": {"type": "glu", "d_hidden": 32},
          "shared": {"type": "glu", "d_hidden": 64}, "shared_gate": true})")},
      {"gpt_oss", with_ffn(R"({"type": "moe", "n_experts": 5, "bias": true,
          "router": {"type": "top_k", "k": 4, "score": "softmax_of_chosen", "bias": true},
          "expert": {"type": "glu", "d_hidden": 64, "bias": true, "slope": 1.702, "limit": 7,
            "up_offset": 1}})")},
      {"llama4", with_ffn(R"({"type": "moe", "n_experts": 4, "scale_input": true,
          "router": {"type": "top_k", "k": 1, "score": "sigmoid", "norm": 0},
          "expert": {"type": "glu", "d_hidden": 64}, "shared": {"type": "glu", "d_hidden": 96}})")},
      {"longcat", with_ffn(R"({"type": "moe", "n_experts": 2, "zero": 1, "identity": 2,
          "router": {"type": "top_k", "k": 2, "softcap": 3, "norm": 2},
          "expert": {"type": "glu", "d_hidden": 32}})")},
      {"gemma4 moe", with_ffn(R"({"type": "moe", "n_experts": 4, "router_norm": "rms_norm",
          "expert_norm": "rms_norm", "expert_out_norm": "rms_norm", "shared_norm": "rms_norm",
          "shared_out_norm": "rms_norm",
          "router": {"type": "top_k", "k": 2, "logit_scale": 0.125, "expert_scale": true},
          "expert": {"type": "glu", "d_hidden": 32}, "shared": {"type": "mlp", "d_hidden": 96}})")},
      {"nemotron", with_ffn(R"({"type": "moe", "n_experts": 6, "d_latent": 32,
          "expert": {"type": "mlp", "act": "relu2", "d_hidden": 64, "bias": false},
          "shared": {"type": "mlp", "act": "relu2", "d_hidden": 96, "bias": false}})")},
      {"deepseek", kDeepseek},
      {"deepseek sparse attention", kSparse},
      {"compressed attention", kCompressed},
      {"engram", kEngram},
      {"deepseek lite", R"("layers": [{"repeat": 2, "mixer": {"type": "latent_attention",
            "n_heads": 3, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 8,
            "v_head_dim": 64, "bias": true, "latent_norm": "layer_norm",
            "scale": "value", "scale_value": 0.2, "temperature": {"scale": 0.5, "floor": 3},
            "pattern": {"type": "window", "width": 6},
            "position": {"type": "rope", "layout": "interleaved"}}}],
          "ffn": {"type": "glu", "d_hidden": 96})"},
      {"latent, unplaced", R"("layers": [{"mixer": {"type": "latent_attention",
            "n_heads": 2, "kv_lora_rank": 32, "qk_nope_head_dim": 32, "qk_rope_head_dim": 0}},
            {"mixer": {"type": "attention", "n_heads": 4, "softcap": 5, "sinks": true}},
            {"mixer": {"type": "latent_attention", "n_heads": 2, "kv_lora_rank": 32,
            "latent_norm": null, "qk_nope_head_dim": 32, "qk_rope_head_dim": 4}}],
          "ffn": {"type": "glu", "d_hidden": 96})"},
  };
}

enum class Storage { floats, blocks, ordered_blocks, f16, bf16 };

/// The same numbers of a weight in blocks under other columns: place i is that of column
/// (shift + 7 i) % their number, of expert e (shift + e + 7 i) % it.
ops::Weight ordered(const ops::Weight& w, int64_t shift) {
  const int64_t width = w.shape().back(), matrices = w.shape().size() == 3 ? w.size(0) : 1;
  std::vector<int32_t> columns;
  for (int64_t m = 0; m < matrices; ++m)
    for (int64_t i = 0; i < width; ++i)
      columns.push_back(static_cast<int32_t>((shift + m + 7 * i) % width));
  const auto owner = std::make_shared<const ops::Weight>(w);
  return ops::Weight::stored(
      {w.name(),
       w.dtype(),
       w.shape(),
       {static_cast<const std::byte*>(w.data()), static_cast<size_t>(w.bytes())},
       owner,
       std::make_shared<const std::vector<int32_t>>(std::move(columns))});
}

/// Numbers of which none is as it begins; matrices in blocks where asked for. With an order of
/// columns, those of one input have the same.
class Built {
 public:
  Built(ModelSpec spec, kernels::Arithmetic arithmetic, Storage storage) : spec_(std::move(spec)) {
    const at::NoGradGuard no_gradients;
    const Weights initial = Weights::initial(spec_, 3);
    int number = 0;
    for (const auto& [decl, weight] : initial.all()) {
      const Tensor t = weight->tensor().detach();
      const Tensor noise = (at::arange(t.numel(), at::kFloat) * 0.37 + ++number).sin();
      // a hash router's table holds numbers of experts
      const double share = decl.name.ends_with("router.table") ? 0 : 0.2;
      ops::Weight w = ops::Weight::dense(decl.name, t + share * noise.reshape(t.sizes()));
      const DType type = std::array{DType::q8_0, DType::q4_1,
                                    storage == Storage::blocks ? DType::f16 : DType::q4_0,
                                    DType::q5_0}[number % 4];
      const bool in_blocks = storage == Storage::blocks || storage == Storage::ordered_blocks;
      const bool is_matrix = w.shape().size() >= 2 && w.shape().back() % 32 == 0;
      if (in_blocks && is_matrix) w = w.converted(type);
      // vectors too, as a folder of 16-bit floats has them
      if (storage == Storage::f16 || storage == Storage::bf16)
        w = w.converted(storage == Storage::f16 ? DType::f16 : DType::bf16);
      if (storage == Storage::ordered_blocks && is_matrix && decl.name.starts_with("layers"))
        w = ordered(w, decl.name.find("mixer") == std::string::npos ? 5 : 3);
      weights_[decl.name] = std::make_shared<const ops::Weight>(std::move(w));
    }
    products_.arithmetic = arithmetic;
    stack_.emplace(spec_, source(), products_);
  }
  nn::WeightSource source() const {
    return [this](const std::string& name) {
      const auto found = weights_.find(name);
      return found == weights_.end() ? nullptr : found->second;
    };
  }
  const ModelSpec& spec() const { return spec_; }
  const StepPlan& steps() const { return stack_->steps(); }
  /// Layers that offer steps.
  size_t offered() const {
    size_t n = 0;
    for (size_t i = 0; i < spec_.layers.size(); ++i) n += steps().offers(i) ? 1 : 0;
    return n;
  }
  bool all_offered() const { return offered() == spec_.layers.size(); }

  /// The stack's output of a call.
  Tensor forward(nn::Context& context) const {
    const Tensor x = stack_->embedded(context);
    return stack_->forward(x, context, 0);
  }
  /// Layers that calls by steps took so far.
  size_t taken() const { return taken_; }
  /// One call by the steps, which must take it where all layers offer them (`all_taken`), or by the
  /// parts.
  Tensor call(State& state,
              const nn::Batch& batch,
              bool by_plan,
              bool all_taken = true,
              int64_t layers = 0) const {
    nn::Context context;
    context.batch = &batch;
    context.call = {&state, nullptr};
    context.lasting = &state.lasting();
    context.products = products_;
    state.check(batch);
    Tensor out;
    const Tensor x = stack_->embedded(context);
    if (by_plan) {
      const size_t n = layers > 0 ? static_cast<size_t>(layers) : spec_.layers.size();
      const size_t some = steps().taken(x, context, 0, n);
      EXPECT_TRUE(some == n || !all_offered() || !all_taken) << some << " of " << n;
      taken_ += some;
      out = stack_->forward(x, context, layers);
    } else {
      context.steps = false;
      out = stack_->forward(x, context, layers);
    }
    state.advance(batch);
    return out;
  }

 private:
  ModelSpec spec_;
  ops::ProductSettings products_;
  std::map<std::string, WeightPtr> weights_;
  std::optional<Stack> stack_;
  mutable size_t taken_ = 0;
};

struct Threads {
  explicit Threads(int n) { set_thread_count(n); }
  ~Threads() { set_thread_count(before); }
  const int before = thread_count();
};

int64_t id_of(int64_t row, int64_t position) {
  return (7 * position + 3 * row + position * position) % kVocab;
}

/// Ids of the next `lengths[i]` tokens of every row of a state, 0 = the row is not in the call.
nn::Batch next(const State& state, const std::vector<int64_t>& lengths, bool pending = false) {
  nn::Batch batch;
  std::vector<int64_t> ids;
  for (size_t r = 0; r < lengths.size(); ++r) {
    if (lengths[r] == 0) continue;
    const int64_t start = state.length(static_cast<int64_t>(r));
    batch.segments.push_back({.row = static_cast<int64_t>(r),
                              .begin = static_cast<int64_t>(ids.size()),
                              .length = lengths[r],
                              .start = start,
                              .pending = pending});
    for (int64_t t = 0; t < lengths[r]; ++t)
      ids.push_back(id_of(static_cast<int64_t>(r), start + t));
  }
  batch.ids_N = at::tensor(ids, at::kLong);
  batch.before_NM = at::full({batch.n_tokens(), kIdsBefore}, -1, at::kLong);
  for (const nn::Segment& s : batch.segments)
    for (int64_t t = 0; t < s.length; ++t)
      for (int64_t m = 0; m < std::min(kIdsBefore, s.start + t); ++m)
        batch.before_NM[s.begin + t][m] = id_of(s.row, s.start + t - 1 - m);
  batch.number();
  return batch;
}

/// Long prompts by the parts alone, then calls of few tokens by both, each on a state of its own.
/// `all_taken`: whether all layers that offer steps take all of these.
void expect_same(const Built& model, const spec::KvOptions& kv = {}, bool all_taken = true) {
  const at::NoGradGuard no_gradients;
  const auto fresh = [&] {
    State state(model.spec(), 3, 2, at::TensorOptions().dtype(at::kFloat), kv);
    model.call(state, next(state, {33, 3, 1}), false);
    return state;
  };
  State want = fresh(), got = fresh();
  for (const std::vector<int64_t>& lengths : std::vector<std::vector<int64_t>>{
           {1, 1, 1}, {1, 0, 0}, {0, 1, 1}, {1, 1, 1}, {1, 1, 0}, {1, 1, 1}})
    ASSERT_TRUE(at::equal(model.call(got, next(got, lengths), true, all_taken),
                          model.call(want, next(want, lengths), false)));
  // copies share pages until one of them writes
  const State fork = got.fork();
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(at::equal(model.call(got, next(got, {1, 1, 1}), true, all_taken),
                          model.call(want, next(want, {1, 1, 1}), false)));
  State other = fork.select({2, 0}), straight = fork.select({2, 0});
  ASSERT_TRUE(at::equal(model.call(other, next(other, {1, 1}), true, all_taken),
                        model.call(straight, next(straight, {1, 1}), false)));
  // guesses, of which one is kept
  for (State* state : {&got, &want}) {
    const bool by_plan = state == &got;
    for (int i = 0; i < 2; ++i)
      model.call(*state, next(*state, {1, 0, 0}, true), by_plan, all_taken);
    state->commit(0, 1);
  }
  ASSERT_TRUE(at::equal(model.call(got, next(got, {1, 1, 1}), true, all_taken),
                        model.call(want, next(want, {1, 1, 1}), false)));
  const State::Packed a = got.pack(""), b = want.pack("");
  ASSERT_EQ(a.values.size(), b.values.size());
  for (size_t i = 0; i < a.values.size(); ++i)
    EXPECT_TRUE(at::equal(a.values[i], b.values[i])) << a.views[i].name;
  EXPECT_GT(model.taken(), 0);
}

TEST(StepPlan, SameBitsAsTheParts) {
  for (const auto& [name, rest] : known())
    for (const int threads : {1, 2, 5}) {
      SCOPED_TRACE(name + ", " + std::to_string(threads) + " threads");
      const Threads scope(threads);
      using kernels::Arithmetic;
      for (const Arithmetic arithmetic :
           {Arithmetic::float32, Arithmetic::int15, Arithmetic::int8}) {
        const Built model(spec_of(rest), arithmetic,
                          arithmetic == Arithmetic::float32 ? Storage::floats : Storage::blocks);
        ASSERT_TRUE(model.all_offered());
        expect_same(model);
        if (threads != 2) continue;
        const Built moved(spec_of(rest), arithmetic, Storage::ordered_blocks);
        ASSERT_TRUE(moved.all_offered());
        expect_same(moved);
      }
    }
}

TEST(StepPlan, SameBitsOfHalves) {
  using kernels::Arithmetic;
  for (const auto& [name, rest] : known())
    for (const auto& [storage, arithmetic] : {std::pair{Storage::f16, Arithmetic::float32},
                                              {Storage::bf16, Arithmetic::float32},
                                              {Storage::bf16, Arithmetic::int15},
                                              {Storage::bf16, Arithmetic::int8}}) {
      SCOPED_TRACE(name + (storage == Storage::f16 ? ", f16" : ", bf16"));
      const Threads scope(2);
      const Built model(spec_of(rest), arithmetic, storage);
      ASSERT_TRUE(model.all_offered());
      expect_same(model);
    }
}

/// Mixers whose state is of fixed size: their steps take one token of each row, which stays.
const std::map<std::string, std::string> kRecurrent = {
    {"mamba2", R"({"type": "mamba2", "n_heads": 8, "d_state": 16})"},
    {"mamba2, channels apart",
     R"({"type": "mamba2", "n_heads": 8, "head_dim": 8, "d_ssm": 32, "d_state": 8, "n_groups": 2,
         "d_conv": 1, "proj_bias": true, "conv_bias": false, "d_per_channel": true,
         "dt_min": 0.1, "dt_max": 0.9, "norm_groups": 2})"},
    {"mamba2, levels",
     R"({"type": "mamba2", "n_heads": 4, "d_state": 12, "n_groups": 2, "levels": 8})"},
    {"mamba2, levels and channels apart",
     R"({"type": "mamba2", "n_heads": 8, "head_dim": 8, "d_ssm": 32, "d_state": 8, "levels": 9,
         "d_per_channel": true, "dt_max": 0.9})"},
    {"mamba2, no norm", R"({"type": "mamba2", "n_heads": 4, "d_state": 12, "norm_groups": 0})"},
    {"delta_net", R"({"type": "delta_net", "n_heads": 4, "gate": true})"},
    {"delta_net, bare",
     R"({"type": "delta_net", "n_heads": 2, "key_dim": 24, "value_dim": 32, "d_conv": 0,
         "gate": false, "negative_eigenvalues": true})"},
    {"gated_delta_net", R"({"type": "gated_delta_net", "n_heads": 4, "n_key_heads": 2})"},
    {"kda", R"({"type": "kda", "n_heads": 4, "rank": 32})"},
    {"rwkv5", R"({"type": "rwkv5", "n_heads": 4})"},
    {"rwkv5, no gate",
     R"({"type": "rwkv5", "n_heads": 2, "key_dim": 16, "value_dim": 48, "gate": false,
         "norm_eps": 1e-3})"},
    {"rwkv6", R"({"type": "rwkv6", "n_heads": 4})"},
    {"rwkv6, other widths",
     R"({"type": "rwkv6", "n_heads": 2, "key_dim": 16, "value_dim": 48, "mix_rank": 16,
         "decay_rank": 24})"},
    {"rwkv7", R"({"type": "rwkv7", "n_heads": 4})"},
    {"rwkv7, other widths",
     R"({"type": "rwkv7", "n_heads": 2, "key_dim": 16, "value_dim": 48, "decay_rank": 64,
         "norm_eps": 1e-3})"},
    {"channel mixing, version 5", R"({"type": "rwkv_channel_mix", "version": "rwkv5"})"},
    {"channel mixing, version 6",
     R"({"type": "rwkv_channel_mix", "version": "rwkv6", "d_hidden": 96})"},
    {"channel mixing, version 7", R"({"type": "rwkv_channel_mix"})"},
    {"kda_bounded", R"({"type": "kda", "n_heads": 4, "full_rank": true, "lower_bound": -5.0})"},
    {"retention", R"({"type": "retention", "n_heads": 4})"},
    {"retention, learned",
     R"({"type": "retention", "n_heads": 2, "angles": "none", "decay": "learned",
         "norm_weight": true})"}};

TEST(StepPlan, SameBitsOfRecurrences) {
  for (const auto& [name, mixer] : kRecurrent)
    for (const int threads : {1, 2, 5}) {
      SCOPED_TRACE(name + ", " + std::to_string(threads) + " threads");
      const Threads scope(threads);
      const ModelSpec spec = spec_of(R"("layers": [{"repeat": 2, "mixer": )" + mixer +
                                     R"(}], "ffn": {"type": "glu", "d_hidden": 96})");
      for (const Storage storage : {Storage::floats, Storage::blocks, Storage::bf16}) {
        const Built model(
            spec,
            storage == Storage::blocks ? kernels::Arithmetic::int15 : kernels::Arithmetic::float32,
            storage);
        ASSERT_TRUE(model.all_offered());
        const at::NoGradGuard no_gradients;
        State state(spec, 2);
        for (int i = 0; i < 2; ++i) model.call(state, next(state, {1, 1}), true);
        expect_same(model, {}, false);
      }
    }
}

TEST(StepPlan, SameBitsForAllWaysToKeepKeys) {
  const Threads scope(2);
  for (const std::string& rest : {kLlama, kDeepseek, kSparse}) {
    const Built model(spec_of(rest), kernels::Arithmetic::int15, Storage::blocks);
    for (const spec::KvType type :
         {spec::KvType::f16, spec::KvType::bf16, spec::KvType::int8, spec::KvType::fp8})
      for (const int64_t page : {0, 3, 64}) {
        SCOPED_TRACE(rest + std::string(name_of(type)) + ", pages of " + std::to_string(page));
        expect_same(model, {.type = type, .page = page});
      }
  }
}

TEST(StepPlan, SeveralTokensOfARowAndSomeLayers) {
  const at::NoGradGuard no_gradients;
  const Threads scope(2);
  for (const std::string& rest : {kLlama, kMixtral, kDeepseek})
    for (const int64_t layers : {0, 1}) {
      SCOPED_TRACE(rest);
      const Built model(spec_of(rest), kernels::Arithmetic::int15, Storage::blocks);
      State want(model.spec(), 2, 8), got(model.spec(), 2, 8);
      for (const std::vector<int64_t>& lengths :
           std::vector<std::vector<int64_t>>{{5, 1}, {1, 7}, {17, 15}, {3, 3}})
        for (const bool pending : {false, true}) {
          if (pending && lengths[0] + lengths[1] > 8) continue;
          ASSERT_TRUE(
              at::equal(model.call(got, next(got, lengths, pending), true, true, layers),
                        model.call(want, next(want, lengths, pending), false, true, layers)));
          if (!pending) continue;
          for (State* state : {&got, &want})
            for (const int64_t row : {0, 1}) state->commit(row, 1);
        }
    }
}

// Parts run by their own steps where their residual has none.
TEST(StepPlan, PartsOfOtherResidualsRunByTheirSteps) {
  const at::NoGradGuard no_gradients;
  const std::string memory = R"("residual": {"type": "gated_hyper_connections", "streams": 2},
      "layers": [{"branches": [
        {"name": "memory", "mixer": {"type": "engram", "heads": 2},
         "residual": {"type": "gated_hyper_connections", "streams": 2, "reads": "all"}},
        {"mixer": {"type": "attention", "n_heads": 4, "position": "rope"}},
        {"ffn": {"type": "glu", "d_hidden": 96}}]}])";
  for (const std::string& rest :
       {memory, R"("residual": {"type": "manifold_hyper_connections", "streams": 2}, )" + kLlama,
        R"("residual": {"type": "manifold_hyper_connections", "streams": 2}, )" + kCompressed})
    for (const int threads : {1, 2, 5}) {
      SCOPED_TRACE(rest);
      const Threads scope(threads);
      const Built model(spec_of(rest), kernels::Arithmetic::int15, Storage::blocks);
      EXPECT_EQ(model.offered(), 0);
      State want(model.spec(), 2), got(model.spec(), 2);
      for (const std::vector<int64_t>& lengths :
           std::vector<std::vector<int64_t>>{{17, 1}, {1, 1}, {1, 0}, {1, 1}, {0, 1}, {1, 1}})
        ASSERT_TRUE(at::equal(model.call(got, next(got, lengths), true),
                              model.call(want, next(want, lengths), false)));
      // what steps of attention make once for a call
      const nn::Batch batch = next(got, {1, 1});
      nn::Context context;
      context.batch = &batch;
      context.call = {&got, nullptr};
      model.forward(context);
      bool made = false;
      context.once<std::shared_ptr<nn::AttentionCalls>>("attention steps", [&] {
        made = true;
        return std::make_shared<nn::AttentionCalls>(batch);
      });
      EXPECT_EQ(made, rest.find("compressed") != std::string::npos);
    }
}

// queries of one segment with and without a choice are left to the tensor path, longer ones taken
TEST(StepPlan, SegmentsThatPassTheNumberOfSelectedKeys) {
  const at::NoGradGuard no_gradients;
  const Threads scope(2);
  const Built model(spec_of(kSparse), kernels::Arithmetic::int15, Storage::blocks);
  State want(model.spec(), 2, 8), got(model.spec(), 2, 8);
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{{5, 1}, {3, 5}, {4, 0}, {0, 9}, {3, 3}, {11, 1}, {2, 14}})
    ASSERT_TRUE(at::equal(model.call(got, next(got, lengths), true, false),
                          model.call(want, next(want, lengths), false)));
  EXPECT_GE(model.taken(), 12);
}

// --- every option of the configs that a plan knows ----------------------------------------------

using spec::Json;

/// Values of a field's schema, of which some may suit it.
std::vector<Json> values_of(const Json& schema) {
  if (schema.contains("enum")) return schema["enum"].get<std::vector<Json>>();
  std::vector<Json> out;
  if (schema.contains("anyOf")) {
    for (const Json& one : schema["anyOf"])
      for (const Json& value : values_of(one)) out.push_back(value);
    return out;
  }
  if (const auto types = schema.find("type"); types != schema.end() && types->is_array()) {
    for (const Json& type : *types) {
      Json one = schema;
      one["type"] = type;
      for (const Json& value : values_of(one)) out.push_back(value);
    }
    return out;
  }
  const std::string type = schema.value("type", "");
  if (type == "boolean") return {true, false};
  if (type == "integer") return {0, 1, 2, 4, 5, 8, 32, 100};
  if (type == "number") return {0, 1e-3, 0.5, 1, 2, 7, 10000};
  if (type == "string") return {"", "a"};
  if (type == "null") return {nullptr};
  if (type != "object") return {};
  const Json properties = schema.value("properties", Json::object());
  for (const auto& [key, property] : properties.items())
    for (const Json& value : values_of(property)) out.push_back({{key, value}});
  return out;
}

/// For every field of a config: its values in turn, those of a part by its mechanisms.
template <class C>
std::vector<std::pair<std::string, std::vector<Json>>> fields_of(const spec::Scope& scope) {
  const Json schema = spec::struct_schema<C>();
  std::vector<std::pair<std::string, std::vector<Json>>> out;
  for (const spec::detail::FieldEntry& field : spec::detail::object_type<C>().fields) {
    std::vector<Json> values;
    if (field.type->part == nullptr) values = values_of(schema.at("properties").at(field.name));
    for (const spec::Mechanism& mechanism : spec::mechanisms())
      if (field.type->part != nullptr && mechanism.slot == field.type->slot)
        values.push_back(spec::example_part(mechanism, scope, 64));
    if (std::string_view(field.name) == "scaling")
      values.push_back({{"type", "linear"}, {"factor", 2.0}});
    if (std::string_view(field.name) == "sections") values.push_back({4, 2, 2});
    // more taps are the spec's, but not the kernel's
    if (std::string_view(field.name) == "d_conv")
      std::erase_if(values, [](const Json& taps) { return taps > 64; });
    // those that cover the documents of the test
    if (std::string_view(field.name) == "levels")
      std::erase_if(values, [](const Json& levels) { return levels > 0 && levels < 8; });
    out.emplace_back(field.name, values);
  }
  return out;
}

template <class C>
bool has_field(const std::string& name) {
  const auto& fields = spec::detail::object_type<C>().fields;
  return std::any_of(fields.begin(), fields.end(),
                     [&](const spec::detail::FieldEntry& field) { return field.name == name; });
}

template <class C>
bool is_flag(const std::string& name) {
  static const Json fields = spec::struct_schema<C>()["properties"];
  return fields.at(name).value("type", "") == "boolean";
}

/// What else a field needs to be allowed in its config, where that has such fields.
const std::map<std::string, Json> kCompanions = {
    {"gate_at", {{"gate", "headwise"}}},
    {"gate_act", {{"gate", "headwise"}}},
    {"gate_bias", {{"gate", "headwise"}}},
    {"qk_norm_at", {{"qk_norm", "rms_norm"}}},
    {"scale_value", {{"scale", "value"}}},
    {"select", {{"pattern", "full"}, {"position", "rope"}}},
    {"gain_init", {{"gain", "scalar"}}},
    {"shared_gate", {{"shared", {{"type", "mlp"}, {"d_hidden", 64}}}}},
    {"shared_norm", {{"shared", {{"type", "mlp"}, {"d_hidden", 64}}}}},
    {"shared_out_norm", {{"shared", {{"type", "mlp"}, {"d_hidden", 64}}}}},
    {"keep_groups", {{"n_groups", 4}}},
    {"group_score", {{"n_groups", 4}, {"keep_groups", 2}}}};

/// Tries all values of all fields of the config at `where`: each is refused, leaves the layers to
/// their parts, or gives the same bits. `taken`: with how many of them the layer offers a step.
template <class C>
void walk(const Json& base, const std::string& where, int64_t& taken) {
  const Json::json_pointer at(where);
  const ModelSpec plain = read_model_spec(base);
  for (const auto& [name, values] : fields_of<C>(plain.scope(0))) {
    int64_t accepted = 0;
    for (const Json& value : values) {
      Json changed = base;
      if (const auto found = kCompanions.find(name); found != kCompanions.end())
        for (const auto& [key, companion] : found->second.items())
          if (has_field<C>(key)) changed[at][key] = is_flag<C>(key) ? Json(true) : companion;
      changed[at][name] = value;
      // a layer that shares its keys has an earlier one that names them
      if (name == "kv_of" && value == "a") changed["layers"][0]["mixer"]["kv_name"] = "a";
      std::optional<ModelSpec> spec;
      try {
        spec = read_model_spec(changed);
      } catch (const Error&) {
        continue;
      }
      ++accepted;
      if (!spec->no_state_reason().empty()) continue;
      SCOPED_TRACE(fmt::format("{}/{} = {}", where, name, value.dump()));
      const Built model(*spec, kernels::Arithmetic::float32, Storage::floats);
      taken += model.steps().offers(1) ? 1 : 0;
      if (model.offered() > 0) expect_same(model, {}, false);
    }
    EXPECT_GE(accepted, 1) << where << "/" << name << ": no value of the test suits this field";
  }
}

TEST(StepPlan, ServesEveryOptionOrLeavesItToTheParts) {
  const Threads scope(1);
  const auto base = [](const std::string& rest) {
    return spec::parse_json(
        R"({"tessera": 1, "arch": "decoder", "vocab": 43, "d_model": 64, "head": "tied", )" + rest +
            "}",
        "test");
  };
  const std::string attention = R"({"type": "attention", "n_heads": 4, "n_kv_heads": 2,
      "position": {"type": "rope"}, "pattern": {"type": "window", "width": 9},
      "qk_norm": {"type": "rms_norm"}})";
  const std::string bare = R"({"type": "attention", "n_heads": 4, "position": "rope"})";
  const Json modern = base(R"("norm": {"type": "rms_norm"}, "residual": {"type": "pre_norm"},
      "layers": [{"mixer": )" +
                           attention + R"(}, {"mixer": )" + attention + R"(}],
      "ffn": {"type": "glu", "d_hidden": 96})");
  const Json older = base(R"("norm": {"type": "layer_norm"}, "residual": {"type": "sandwich"},
      "layers": [{"mixer": )" +
                          bare + R"(}, {"mixer": )" + bare + R"(}],
      "ffn": {"type": "mlp", "d_hidden": 96})");
  int64_t taken = 0;
  walk<nn::AttentionConfig>(modern, "/layers/1/mixer", taken);
  walk<nn::AttentionConfig>(older, "/layers/1/mixer", taken);
  walk<nn::RopeConfig>(modern, "/layers/1/mixer/position", taken);
  walk<nn::WindowPatternConfig>(modern, "/layers/1/mixer/pattern", taken);
  for (const char* type : {"p_rope", "xpos", "m_rope"}) {
    Json other = modern;
    other["layers"][1]["mixer"]["position"] = {{"type", type}};
    const std::string at = "/layers/1/mixer/position";
    if (std::string_view(type) == "p_rope")
      walk<nn::PRopeConfig>(other, at, taken);
    else if (std::string_view(type) == "xpos")
      walk<nn::XposConfig>(other, at, taken);
    else
      walk<nn::MRopeConfig>(other, at, taken);
  }
  walk<nn::RmsNormConfig>(modern, "/layers/1/mixer/qk_norm", taken);
  walk<nn::RmsNormConfig>(modern, "/norm", taken);
  walk<nn::LayerNormConfig>(older, "/norm", taken);
  walk<nn::PreNormConfig>(modern, "/residual", taken);
  walk<nn::SandwichConfig>(older, "/residual", taken);
  const auto under = [&](const char* residual) {
    Json other = older;
    other["residual"] = {{"type", residual}};
    return other;
  };
  walk<nn::PostNormConfig>(under("post_norm"), "/residual", taken);
  walk<nn::ReorderedConfig>(under("reordered"), "/residual", taken);
  walk<nn::ParallelConfig>(under("parallel"), "/residual", taken);
  walk<nn::GluConfig>(modern, "/ffn", taken);
  walk<nn::MlpConfig>(older, "/ffn", taken);
  EXPECT_GE(taken, 150);
}

TEST(StepPlan, ServesEveryOptionOfRecurrences) {
  const Threads scope(1);
  int64_t taken = 0;
  for (const auto& [name, mixer] : kRecurrent) {
    const Json base = spec::parse_json(
        R"({"tessera": 1, "arch": "decoder", "vocab": 43, "d_model": 64, "head": "tied",
            "layers": [{"mixer": )" +
            mixer + R"(}, {"mixer": )" + mixer + R"(}],
            "ffn": {"type": "glu", "d_hidden": 96}})",
        "test");
    const std::string at = "/layers/1/mixer";
    if (name == "mamba2") walk<nn::Mamba2Config>(base, at, taken);
    if (name == "delta_net") walk<nn::DeltaNetConfig>(base, at, taken);
    if (name == "gated_delta_net") walk<nn::GatedDeltaNetConfig>(base, at, taken);
    if (name == "kda") walk<nn::KdaConfig>(base, at, taken);
    if (name == "retention") walk<nn::RetentionConfig>(base, at, taken);
    if (name == "rwkv5") walk<nn::Rwkv5Config>(base, at, taken);
    if (name == "rwkv6") walk<nn::Rwkv6Config>(base, at, taken);
    if (name == "rwkv7") walk<nn::Rwkv7Config>(base, at, taken);
    if (name == "channel mixing, version 6") walk<nn::RwkvChannelMixConfig>(base, at, taken);
  }
  EXPECT_GE(taken, 150);
}

TEST(StepPlan, ServesEveryOptionOfExpertsAndLatents) {
  const Threads scope(1);
  const auto base = [](const std::string& rest) {
    return spec::parse_json(
        R"({"tessera": 1, "arch": "decoder", "vocab": 43, "d_model": 64, "head": "tied", )" + rest +
            "}",
        "test");
  };
  int64_t experts = 0, latents = 0;
  const Json moe = base(with_ffn(R"({"type": "moe", "n_experts": 8, "router": {"type": "top_k"},
      "expert": {"type": "glu", "d_hidden": 32}})"));
  walk<nn::MoeConfig>(moe, "/ffn", experts);
  walk<nn::TopKConfig>(moe, "/ffn/router", experts);
  walk<nn::GluConfig>(moe, "/ffn/expert", experts);
  Json plain = moe;
  plain["ffn"]["expert"] = {{"type", "mlp"}, {"d_hidden", 32}};
  walk<nn::MlpConfig>(plain, "/ffn/expert", experts);
  EXPECT_GE(experts, 100);
  const std::string latent = R"({"type": "latent_attention", "n_heads": 4, "q_lora_rank": 32,
      "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
      "position": {"type": "rope"}})";
  const Json mla = base(R"("layers": [{"mixer": )" + latent + R"(}, {"mixer": )" + latent +
                        R"(}], "ffn": {"type": "glu", "d_hidden": 96})");
  walk<nn::LatentAttentionConfig>(mla, "/layers/1/mixer", latents);
  walk<nn::RopeConfig>(mla, "/layers/1/mixer/position", latents);
  Json sparse = mla;
  for (int i = 0; i < 2; ++i)
    sparse["layers"][i]["mixer"]["select"] = {
        {"type", "indexer"}, {"n_heads", 2}, {"head_dim", 16}, {"top_k", 5}, {"name", "a"}};
  walk<nn::IndexerConfig>(sparse, "/layers/1/mixer/select", latents);
  EXPECT_GE(latents, 70);
  int64_t compressed = 0;
  const std::string windows = R"({"type": "compressed_attention", "n_heads": 4, "q_lora_rank": 32,
      "window": 5, "block": 4, "position": "rope",
      "index": {"n_heads": 2, "head_dim": 16, "top_k": 4}})";
  walk<nn::CompressedAttentionConfig>(
      base(R"("layers": [{"mixer": )" + windows + R"(}, {"mixer": )" + windows +
           R"(}], "ffn": {"type": "glu", "d_hidden": 96})"),
      "/layers/1/mixer", compressed);
  EXPECT_GE(compressed, 40);
  int64_t memories = 0;
  walk<nn::EngramConfig>(base(R"("layers": [{"mixer": {"type": "engram", "heads": 2}},
          {"mixer": {"type": "engram", "heads": 2}}], "ffn": {"type": "glu", "d_hidden": 96})"),
                         "/layers/1/mixer", memories);
  EXPECT_GE(memories, 30);
}

// layers that run as tensors read values that a step has published, and the other way round
TEST(StepPlan, FirstValuesReachLaterLayersOfBothPaths) {
  const Threads scope(2);
  const std::string plain = R"({"mixer": {"type": "attention", "n_heads": 4}})",
                    taken = R"({"mixer": {"type": "rwkv7", "n_heads": 4}})",
                    left = R"({"mixer": {"type": "rwkv7", "n_heads": 4},
                 "ffn": {"type": "glu", "d_hidden": 64, "learned_slope": true}})";
  for (const auto& [layers, offered] : std::vector<std::pair<std::string, size_t>>{
           {taken + ", " + left + ", " + taken, 2},
           {plain + ", " + left + ", " + taken + ", " + left, 2}}) {
    SCOPED_TRACE(layers);
    const Built model(spec_of(R"("layers": [)" + layers + R"(], "ffn": {"type": "glu",
                                 "d_hidden": 96})"),
                      kernels::Arithmetic::float32, Storage::floats);
    EXPECT_EQ(model.offered(), offered);
    expect_same(model, {}, false);
  }
}

// what experts count and lose is the tensor path's
TEST(StepPlan, ExpertsLeaveStatisticsAndLossesToTheParts) {
  const at::NoGradGuard no_gradients;
  const Built model(spec_of(kMixtral), kernels::Arithmetic::float32, Storage::floats);
  State state(model.spec(), 1);
  const nn::Batch batch = next(state, {1});
  const auto taken = [&](const std::function<void(nn::Context&)>& change) {
    nn::Context context;
    context.batch = &batch;
    context.call = {&state, nullptr};
    change(context);
    return model.steps().taken(at::zeros({1, 64}), context, 0, 2);
  };
  EXPECT_EQ(taken([](nn::Context&) {}), 2);
  const auto ignore = [](const std::string&, const Tensor&) {};
  EXPECT_EQ(taken([&](nn::Context& c) { c.add_loss = ignore; }), 0);
  EXPECT_EQ(taken([&](nn::Context& c) { c.add_statistic = ignore; }), 0);
}

TEST(StepPlan, LeavesOtherPartsToThemselves) {
  for (
      const char* rest :
      {R"("layers": [{"mixer": {"type": "attention", "n_heads": 4, "position": "alibi"}}])",
       R"("layers": [{"mixer": {"type": "attention", "n_heads": 4, "add_zero_attn": true}}])",
       R"("layers": [{"mixer": {"type": "attention", "n_heads": 4, "kv_name": "a"}}])",
       R"("layers": [{"mixer": {"type": "attention", "n_heads": 4, "qk_norm": "l2_norm"}}])",
       R"("layers": [{"mixer": {"type": "attention", "n_heads": 4,
                                 "pattern": {"type": "chunked", "size": 4}}}])",
       R"("layers": [{"mixer": {"type": "attention", "n_heads": 4}, "depth": "mixture_of_depths"}])",
       R"("norm": "dyt", "layers": [{"mixer": {"type": "attention", "n_heads": 4}}])",
       R"("residual": "hyper_connections",
           "layers": [{"mixer": {"type": "attention", "n_heads": 4}}])",
       R"("layers": [{"branches": [{"name": "a", "mixer": {"type": "attention", "n_heads": 4}},
             {"ffn": {"type": "mlp", "d_hidden": 64}, "add": ["a"]}]}])",
       R"("layers": [{"mixer": {"type": "attention", "n_heads": 4}}],
           "ffn": {"type": "glu", "d_hidden": 64, "learned_slope": true})",
       R"("layers": [{"mixer": {"type": "attention", "n_heads": 4}}],
           "ffn": {"type": "moe", "n_experts": 4, "router": "switch",
             "expert": {"type": "glu", "d_hidden": 64}})",
       R"("layers": [{"mixer": {"type": "attention", "n_heads": 4}}],
           "ffn": {"type": "moe", "n_experts": 4, "expert": {"type": "glu", "d_hidden": 64},
             "shared": {"type": "linear"}})",
       R"("layers": [{"mixer": {"type": "latent_attention", "n_heads": 4, "kv_lora_rank": 32,
             "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "position": "alibi"}}])"}) {
    SCOPED_TRACE(rest);
    const Built model(spec_of(rest), kernels::Arithmetic::float32, Storage::floats);
    EXPECT_EQ(model.offered(), 0);
  }
}

TEST(StepPlan, RunsTheNeighboursOfALayerWithoutAStep) {
  const Threads scope(2);
  const std::string plain = R"({"mixer": {"type": "attention", "n_heads": 4, "position": "rope"}})",
                    other =
                        R"({"mixer": {"type": "attention", "n_heads": 4, "position": "alibi"}})";
  const Built model(spec_of(R"("layers": [)" + plain + ", " + other + ", " + plain + ", " + plain +
                            R"(], "ffn": {"type": "glu", "d_hidden": 96})"),
                    kernels::Arithmetic::int15, Storage::blocks);
  EXPECT_EQ(model.offered(), 3);
  const at::NoGradGuard no_gradients;
  State state(model.spec(), 1);
  const nn::Batch batch = next(state, {1});
  nn::Context context;
  context.batch = &batch;
  context.call = {&state, nullptr};
  const Tensor x = at::zeros({1, 64});
  EXPECT_EQ(model.steps().taken(x, context, 0, 4), 1);
  EXPECT_EQ(model.steps().taken(x, context, 1, 4), 0);
  EXPECT_EQ(model.steps().taken(x, context, 2, 4), 2);
  EXPECT_EQ(model.steps().taken(x, context, 2, 3), 1);
  expect_same(model);
}

// several new tokens of a window are the tensor path's, beside layers that take them
TEST(StepPlan, LayersThatTakeACallRunBesideThoseThatDoNot) {
  const at::NoGradGuard no_gradients;
  const Threads scope(2);
  const Built model(spec_of(R"("layers": [
      {"mixer": {"type": "attention", "n_heads": 4, "position": "rope"}},
      {"mixer": {"type": "attention", "n_heads": 4, "pattern": {"type": "window", "width": 3}}},
      {"mixer": {"type": "attention", "n_heads": 4, "position": "rope"}}],
      "ffn": {"type": "glu", "d_hidden": 96})"),
                    kernels::Arithmetic::float32, Storage::floats);
  State want(model.spec(), 2, 4), got(model.spec(), 2, 4);
  for (const std::vector<int64_t>& lengths :
       std::vector<std::vector<int64_t>>{{5, 1}, {1, 1}, {1, 4}, {1, 1}}) {
    const nn::Batch batch = next(got, lengths);
    nn::Context context;
    context.batch = &batch;
    context.call = {&got, nullptr};
    const bool one_each = lengths == std::vector<int64_t>{1, 1};
    EXPECT_EQ(model.steps().taken(at::zeros({batch.n_tokens(), 64}), context, 0, 3),
              one_each ? 3 : 1);
    const nn::Batch same = next(want, lengths);
    ASSERT_TRUE(at::equal(model.call(got, batch, true, false), model.call(want, same, false)));
  }
}

TEST(StepPlan, TakesCallsOfFewTokensWithoutGradientsAlone) {
  const Built model(spec_of(kLlama), kernels::Arithmetic::float32, Storage::floats);
  State state(model.spec(), 2);
  const auto serves = [&](const nn::Batch& batch, const std::function<void(nn::Context&)>& change) {
    nn::Context context;
    context.batch = &batch;
    context.call = {&state, nullptr};
    change(context);
    return model.steps().taken(at::zeros({batch.n_tokens(), 64}), context, 0, 3) == 3;
  };
  const auto nothing = [](nn::Context&) {};
  EXPECT_FALSE(serves(next(state, {1, 1}), nothing));  // gradients
  const at::NoGradGuard no_gradients;
  EXPECT_TRUE(serves(next(state, {1, 1}), nothing));
  EXPECT_FALSE(serves(next(state, {30, 3}), nothing));
  EXPECT_FALSE(serves(next(state, {1, 1}), [](nn::Context& c) { c.call.state = nullptr; }));
  EXPECT_FALSE(serves(next(state, {1, 1}), [](nn::Context& c) { c.training = true; }));
  EXPECT_FALSE(serves(next(state, {1, 1}),
                      [](nn::Context& c) { c.probe = [](const std::string&, const Tensor&) {}; }));
  EXPECT_FALSE(serves(next(state, {1, 1}), [](nn::Context& c) {
    c.call.replace = [](const std::string&, const Tensor& x) { return x; };
  }));
}

}  // namespace
}  // namespace tessera::model::step_plan_test
