// Rows of whole models: what experts cost in decoding, decoding steps by kind of model, experts'
// products in training beside one dense product, and what computing layers again saves and costs in
// training.
//   models_rows [ROW ...] [--repeats N] [--json] [--list]
#include <fmt/format.h>

#include <torch/csrc/autograd/autograd.h>

#include <memory>

#include "rows.h"
#include "tessera/model/model.h"
#include "tessera/model/plan.h"
#include "tessera/ops/weights/weight.h"
#include "tessera/train/objective/loss.h"

namespace tessera::bench {
namespace {

model::Model model_of(const std::string& layers) {
  const model::ModelSpec spec = model::read_model_spec(spec::parse_json(
      fmt::format(R"({{"tessera": 1, "arch": "decoder", "vocab": 256, {}}})", layers), "bench"));
  return {spec, model::Weights::initial(spec, 1)};
}

/// The same with its matrices in Q4_0, activations in 15 bits.
model::Model quantized_model_of(const std::string& layers) {
  const model::Model plain = model_of(layers);
  std::map<std::string, model::WeightPtr> weights;
  for (const auto& [decl, weight] : plain.weights().all()) {
    const bool rounds =
        decl.quantises() && decl.kind == spec::ParamKind::matrix && decl.shape.back() % 32 == 0;
    weights[decl.name] =
        std::make_shared<const ops::Weight>(rounds ? weight->converted(DType::q4_0) : *weight);
  }
  return {plain.spec(), model::Weights::check(plain.spec(), std::move(weights)),
          kernels::Arithmetic::int15};
}

/// Token after token of one row, without gradients.
class Decoding {
 public:
  explicit Decoding(model::Model model, bool steps = true)
      : model_(std::move(model)), state_(model_.spec(), 1), steps_(steps) {}
  void operator()() {
    const at::NoGradGuard no_gradients;
    model::ForwardOptions options;
    options.state = &state_;
    options.steps = steps_;
    model_.logits(
        model_.hidden(nn::Batch::of({{next_++ * 37 % 256}}, {state_.length(0)}), options));
  }
  int64_t parameters() const { return model::make_plan(model_.spec(), 1).parameters; }

 private:
  model::Model model_;
  model::State state_;
  bool steps_;
  int64_t next_ = 1;
};

void experts(Report& report) {
  // 64 experts of 512 x 256 in each of four layers, and the dense layer that is as large
  report.group("experts/decode", [&] {
    const std::string around = R"("d_model": 512, "layers": [{"repeat": 4}],
        "mixer": {"type": "attention", "n_heads": 8, "position": "rope"}, "ffn": )";
    Decoding some(model_of(around + R"({"type": "moe", "n_experts": 64,
                                       "router": {"type": "top_k", "k": 8},
                                       "expert": {"type": "glu", "d_hidden": 256}})")),
        dense(model_of(around + R"({"type": "glu", "d_hidden": 16384})"));
    const auto s = report.seconds({[&] { some(); }, [&] { dense(); }});
    report.add({"experts/decode", s[0] / s[1], "x", Aim::at_most, 0.3,
                fmt::format("8 of 64 experts {}, dense {} a token; {:.0f} and {:.0f} M parameters",
                            milliseconds(s[0]), milliseconds(s[1]),
                            static_cast<double>(some.parameters()) / 1e6,
                            static_cast<double>(dense.parameters()) / 1e6)});
  });
}

/// Kinds of models whose parts offer decoding steps, each of 70 to 110 M parameters.
const std::pair<const char*, const char*> kStepped[] = {
    {"attention", R"("d_model": 768, "layers": [{"repeat": 12}], "mixer": {"type": "attention",
        "n_heads": 12, "n_kv_heads": 4, "position": "rope"}, "ffn": {"type": "glu", "d_hidden": 2048})"},
    {"mamba2", R"("d_model": 768, "layers": [{"repeat": 24, "ffn": null}],
        "mixer": {"type": "mamba2", "n_heads": 24, "d_state": 128})"},
    {"gated_delta_net", R"("d_model": 768, "layers": [{"repeat": 12}],
        "mixer": {"type": "gated_delta_net", "n_heads": 6}, "ffn": {"type": "glu", "d_hidden": 2048})"},
    {"retention", R"("d_model": 768, "layers": [{"repeat": 12}],
        "mixer": {"type": "retention", "n_heads": 6}, "ffn": {"type": "glu", "d_hidden": 2048})"},
    {"experts", R"("d_model": 512, "layers": [{"repeat": 12}], "mixer": {"type": "attention",
        "n_heads": 8, "n_kv_heads": 4, "position": "rope"}, "ffn": {"type": "moe", "n_experts": 16,
        "router": {"type": "top_k", "k": 4}, "expert": {"type": "glu", "d_hidden": 256}})"},
    {"rwkv7", R"("d_model": 768, "layers": [{"repeat": 12, "branches": [
        {"name": "time", "mixer": {"type": "rwkv7", "n_heads": 12}},
        {"name": "channel", "mixer": {"type": "rwkv_channel_mix"}}]}], "norm": "layer_norm")"},
    {"latent_attention", R"("d_model": 768, "layers": [{"repeat": 12}], "mixer": {
        "type": "latent_attention", "n_heads": 12, "q_lora_rank": 384, "kv_lora_rank": 256,
        "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "position": "rope"},
        "ffn": {"type": "glu", "d_hidden": 2048})"}};

/// The time of a token by tensors, by that of decoding steps (model/step_plan.h).
void steps(Report& report) {
  for (const auto& [kind, layers] : kStepped) {
    const std::string row = fmt::format("decode/steps/{}", kind);
    report.group(row, [&report, &row, layers = layers] {
      const model::Model model = quantized_model_of(layers);
      Decoding by_tensors(model, /*steps=*/false), by_steps(model);
      const auto s = report.seconds({[&] { by_tensors(); }, [&] { by_steps(); }});
      report.add({row, s[0] / s[1], "x", Aim::at_least, 1.3,
                  fmt::format("{:.0f} and {:.0f} tokens/s; {:.0f} M parameters, Q4_0", 1 / s[0],
                              1 / s[1], static_cast<double>(by_steps.parameters()) / 1e6)});
    });
  }
}

/// y = x w^T for rows sorted by expert, and its gradients, beside one matrix for all of them.
void grouped(Report& report) {
  report.group("experts/products", [&] {
    constexpr int64_t kExperts = 32, kOut = 1024, kIn = 512;
    for (const int64_t each : {8, 32, 128}) {
      const int64_t n = kExperts * each;
      std::vector<int64_t> offsets;
      for (int64_t e = 0; e <= kExperts; ++e) offsets.push_back(e * each);
      const auto drawn = [](at::IntArrayRef sizes) {
        return at::arange(c10::multiply_integers(sizes), at::kFloat)
            .mul_(0.7)
            .sin_()
            .reshape(sizes);
      };
      const auto learned = [&](at::IntArrayRef sizes) {
        return ops::Weight::dense("w", drawn(sizes).requires_grad_(true));
      };
      const ops::Weight experts = learned({kExperts, kOut, kIn}), one = learned({kOut, kIn});
      const Tensor x = drawn({n, kIn}).requires_grad_(true), dy = drawn({n, kOut});
      const auto seconds = [&](const Program& some, const Program& dense, const char* what) {
        const auto s = report.seconds({some, dense});
        report.add({fmt::format("experts/products/{}/{}", each, what), s[0] / s[1], "x",
                    each >= 32 ? Aim::at_most : Aim::none, 1.25,
                    fmt::format("{} experts {}, one matrix {}; {} x {}", kExperts,
                                milliseconds(s[0]), milliseconds(s[1]), kOut, kIn)});
      };
      {
        const at::NoGradGuard no_gradients;
        seconds([&] { ops::grouped_linear(x, experts, offsets); }, [&] { ops::linear(x, one); },
                "inference");
      }
      seconds([&] { ops::grouped_linear(x, experts, offsets); }, [&] { ops::linear(x, one); },
              "forward");
      const Tensor some = ops::grouped_linear(x, experts, offsets), dense = ops::linear(x, one);
      const auto gradient = [&](const Tensor& y, const Tensor& of) {
        return [&y, &dy, of] { torch::autograd::grad({y}, {of}, {dy}, /*retain_graph=*/true); };
      };
      seconds(gradient(some, x), gradient(dense, x), "inputs");
      seconds(gradient(some, experts.dense_tensor()), gradient(dense, one.dense_tensor()),
              "weights");
    }
  });
}

void recompute(Report& report) {
  report.group("recompute", [&] {
    const model::Model model = model_of(R"("d_model": 256, "layers": [{"repeat": 24}],
        "mixer": {"type": "attention", "n_heads": 4, "position": "rope"},
        "ffn": {"type": "glu", "d_hidden": 688})");
    const Tensor ids = at::arange(8 * 128).remainder(251).view({8, 128});
    const nn::Batch batch = nn::Batch::of(ids);
    const Tensor targets = batch.ids_N.roll(-1);
    const auto hidden = [&](nn::RecomputeOf of) {
      model::ForwardOptions options;
      options.training = true;
      options.recompute.of = of;
      return model.hidden(batch, options);
    };
    const auto step = [&](nn::RecomputeOf of) {
      train::loss_and_backward(model, hidden(of), targets, {.scale = 1e-3});
    };
    step(nn::RecomputeOf::none);  // gradients lie ready
    const auto s = report.seconds(
        {[&] { step(nn::RecomputeOf::layers); }, [&] { step(nn::RecomputeOf::none); }});
    report.add({"recompute/time", s[0] / s[1], "x", Aim::at_most, 1.35,
                fmt::format("layers {}, none {} a step of 1,024 tokens, 24 layers of 256",
                            milliseconds(s[0]), milliseconds(s[1]))});
    const auto kept = [&](nn::RecomputeOf of) {
      return static_cast<double>(peak_bytes([&] { hidden(of); }));
    };
    const double layers = kept(nn::RecomputeOf::layers), none = kept(nn::RecomputeOf::none);
    report.add(
        {"recompute/memory", layers / none, "x", Aim::at_most, 0.2,
         fmt::format("forward pass: layers {:.0f} MB, none {:.0f} MB", layers / 1e6, none / 1e6)});
  });
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  return run(argc, argv, "models", {experts, steps, grouped, recompute});
}
