// Training gives the same numbers for any number of threads: losses and weights, bit for bit.
#include <ATen/Parallel.h>

#include "tessera/base/threads.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/evaluate.h"
#include "tessera/nn/registry.h"
#include "tessera/train/loss.h"
#include "tessera/train/run_folder.h"
#include "tessera/train/train_testing.h"
#include "tessera/train/trainer.h"

namespace tessera::train::threads_test {
namespace {

namespace fs = std::filesystem;

/// As many threads, of tessera's and of libtorch's, while it lives.
class Threads {
 public:
  explicit Threads(int n) {
    set_thread_count(n);
    at::set_num_threads(n);
  }
  ~Threads() {
    set_thread_count(ours_);
    at::set_num_threads(theirs_);
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int ours_ = thread_count(), theirs_ = at::get_num_threads();
};

std::vector<Json> log_of(const fs::path& run) {
  std::vector<Json> lines;
  const std::string text = read_text_file(run / "log.jsonl");
  for (size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    lines.push_back(json_of(std::string_view(text).substr(begin, end - begin)));
  }
  return lines;
}

TEST(Trainer, LossCurvesAreTheSameForAnyNumberOfThreads) {
  const TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));
  json["spec"]["layers"][0]["mixer"]["dropout"] = 0.1;
  json["spec"]["ffn"] = json_of(R"({"type": "moe", "n_experts": 4, "expert_dropout": 0.1,
                                    "expert": {"type": "glu", "d_hidden": 16, "dropout": 0.2},
                                    "shared": {"type": "glu", "d_hidden": 32}})");
  json["train"]["z_loss"] = 1e-3;
  std::vector<fs::path> checkpoints;
  for (const int threads : {1, 2}) {
    const Threads of(threads);
    checkpoints.push_back(
        train(read_recipe(json, ""), folder / fmt::format("threads{}", threads)).checkpoint);
  }
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(read_text_file(checkpoints[0] / file) == read_text_file(checkpoints[1] / file))
        << file;
  const auto one = log_of(folder / "threads1"), two = log_of(folder / "threads2");
  ASSERT_EQ(one.size(), two.size());
  for (size_t i = 0; i < one.size(); ++i)
    for (const char* key : {"loss", "grad_norm", "valid_loss"})
      EXPECT_EQ(one[i].value(key, Json()), two[i].value(key, Json())) << i << " " << key;
}

// --- every part
// -----------------------------------------------------------------------------------

constexpr int64_t kWidth = 64, kVocab = 97;
// one longer than the blocks of mixers, and two whose lengths are no multiple of anything; together
// more numbers than libtorch sums in one thread (2^15)
const std::vector<int64_t> kLengths = {401, 37, 163};

/// Two layers with the part's example: of a decoder, else of an encoder, else beside an encoder.
model::ModelSpec around(const spec::Mechanism& part) {
  std::string refusals;
  for (const char* arch : {"decoder", "encoder", "encoder_decoder"}) try {
      spec::Scope scope;
      scope.d_model = scope.width = scope.source = kWidth;
      scope.vocab = kVocab;
      scope.n_layers = 2;
      scope.n_experts = 4;
      scope.causal = arch != std::string("encoder");
      scope.path = "test";
      Json json = {{"tessera", 1},     {"arch", arch},
                   {"vocab", kVocab},  {"d_model", kWidth},
                   {"head", "linear"}, {"ffn", {{"type", "glu"}, {"d_hidden", 96}}}};
      const Json example = spec::example_part(part, scope, kLengths[0]);
      json["mixer"] = {{"type", "attention"}, {"n_heads", 2}, {"position", "rope"}};
      if (part.slot == spec::Slot::router)
        json["ffn"] = {{"type", "moe"},
                       {"n_experts", 4},
                       {"router", example},
                       {"expert", {{"type", "glu"}, {"d_hidden", 24}}}};
      else
        json[spec::name_of(part.slot)] = example;
      if (arch == std::string("encoder_decoder")) {
        json["cross"] = example;
        json["mixer"] = {{"type", "attention"}, {"n_heads", 2}};
        json["stacks"] = json_of(
            R"({"encoder": {"layers": [{"repeat": 2}]}, "decoder": {"layers": [{"repeat": 2}]}})");
      } else {
        json["layers"] = json_of(R"([{"repeat": 2}])");
      }
      return model::read_model_spec(json);
    } catch (const Error& error) {
      refusals += std::string(error.what()) + "; ";
    }
  fail(ErrorKind::internal, "test", "{} fits nowhere: {}", part.name, refusals);
}

nn::Batch documents(uint64_t seed) {
  std::vector<std::vector<int64_t>> rows;
  const RandomKey key(seed);
  uint64_t i = 0;
  for (const int64_t length : kLengths) {
    rows.emplace_back();
    for (int64_t t = 0; t < length; ++t)
      rows.back().push_back(static_cast<int64_t>(key.bits(i++) % kVocab));
  }
  return nn::Batch::of(rows);
}

struct Learned {
  std::vector<double> losses;
  std::map<std::string, Tensor> weights;
};

/// Three steps of gradient descent.
Learned learn(const model::ModelSpec& spec) {
  const model::Model model(spec, model::Weights::initial(spec, 1));
  Learned out;
  for (int64_t step = 0; step < 3; ++step) {
    model::ForwardOptions options;
    options.training = true;
    options.key = RandomKey(5).fold(static_cast<uint64_t>(step));
    options.step = step;
    Tensor added;
    options.add_loss = [&](const std::string&, const Tensor& loss) {
      added = added.defined() ? added + loss : loss;
    };
    const nn::Batch batch = documents(7 + static_cast<uint64_t>(step));
    std::optional<nn::Encoded> encoded;
    if (spec.encoder) options.encoded = &encoded.emplace(model.encode(documents(3), options));
    const Tensor hidden = model.hidden(batch, options);
    out.losses.push_back(loss_and_backward(model, hidden, batch.ids_N.roll(-1), {.scale = 0.004},
                                           added.defined() ? added * 0.004 : added)
                             .nll);
    if (added.defined()) out.losses.push_back(added.item<double>());
    const at::NoGradGuard no_gradients;
    for (const auto& [decl, weight] : model.weights().all()) {
      const Tensor& w = weight->dense_tensor();
      if (w.grad().defined()) Tensor(w).sub_(w.grad(), 0.1);
      w.mutable_grad().reset();
    }
  }
  for (const auto& [decl, weight] : model.weights().all())
    out.weights[decl.name] = weight->dense_tensor().detach();
  return out;
}

class EveryPart : public testing::TestWithParam<const spec::Mechanism*> {};

TEST_P(EveryPart, LearnsTheSameForAnyNumberOfThreads) {
  const model::ModelSpec spec = around(*GetParam());
  std::optional<Learned> one;
  for (const int threads : {1, 2, 3}) {
    const Threads of(threads);
    const Learned here = learn(spec);
    if (!one) one = here;
    EXPECT_EQ(here.losses, one->losses) << threads << " threads";
    for (const auto& [name, value] : here.weights) {
      EXPECT_TRUE(value.isfinite().all().item<bool>()) << name;
      EXPECT_TRUE(at::equal(value, one->weights.at(name)))
          << name << " with " << threads << " threads";
    }
  }
}

std::vector<const spec::Mechanism*> parts() {
  nn::register_mechanisms();
  using spec::Slot;
  std::vector<const spec::Mechanism*> all;
  for (const spec::Mechanism& mechanism : spec::mechanisms())
    for (const Slot slot : {Slot::mixer, Slot::router, Slot::residual, Slot::depth})
      if (mechanism.slot == slot) all.push_back(&mechanism);
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, EveryPart, testing::ValuesIn(parts()), [](const auto& info) {
  return fmt::format("{}_{}", spec::name_of(info.param->slot), info.param->name);
});

// --- sums ----------------------------------------------------------------------------------------

/// More rows than libtorch sums in one go.
TEST(Trainer, SumsOfManyTokensDoNotTurnOnTheThreads) {
  const Tensor values = at::sin(at::arange(200'000, at::kFloat));
  const int before = at::get_num_threads();
  std::vector<double> sums;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    sums.push_back(infer::sum_in_order(values));
  }
  at::set_num_threads(before);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

}  // namespace
}  // namespace tessera::train::threads_test
