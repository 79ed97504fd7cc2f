// What products in digits change of a model with weights in blocks, beside float32, on a text:
//   digits_table MODEL TEXT [TOKENS]
// Windows of 512 tokens; mean KL divergence from the distribution of float32, how often the most
// likely token is the same, and perplexity.
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>

#include "tessera/base/error.h"
#include "tessera/base/text_input.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::bench {
namespace {

constexpr int64_t kWindow = 512;

struct Sums {
  double nll = 0, divergence = 0;
  int64_t same = 0, targets = 0;
};

/// log p of every token of the vocabulary behind each of `ids`.
Tensor log_probabilities(const model::Model& model, const std::vector<int64_t>& ids) {
  return model.logits(model.hidden(nn::Batch::of({ids}))).to(at::kDouble).log_softmax(-1);
}

int table(const char* path, const char* text_path, int64_t most) {
  using kernels::Arithmetic;
  const std::vector<std::pair<const char*, Arithmetic>> kinds = {
      {"float32 (`--exact`)", Arithmetic::float32},
      {"two digits", Arithmetic::int15},
      {"one digit (`--fast`)", Arithmetic::int8}};
  std::vector<infer::LoadedModel> models;
  for (const auto& [name, arithmetic] : kinds)
    models.push_back(infer::load_model(path, {}, arithmetic));
  if (!models[0].tokenizer) fail(ErrorKind::usage, "digits", "{} has no tokenizer", path);
  const auto encoded = models[0].tokenizer->encode(read_text_input(text_path, nullptr), {});
  std::vector<int64_t> ids(encoded.begin(), encoded.end());
  ids.resize(std::min<size_t>(ids.size(), static_cast<size_t>(most)));

  const at::NoGradGuard no_gradients;
  std::vector<Sums> sums(kinds.size());
  for (int64_t begin = 0; begin + 1 < std::ssize(ids); begin += kWindow) {
    const int64_t n = std::min(kWindow, std::ssize(ids) - begin);
    const std::vector<int64_t> window(ids.begin() + begin, ids.begin() + begin + n);
    if (n < 2) break;
    const Tensor targets = at::tensor(std::vector<int64_t>(window.begin() + 1, window.end()));
    Tensor exact;
    for (size_t i = 0; i < kinds.size(); ++i) {
      const Tensor logp = log_probabilities(models[i].model, window);
      if (i == 0) exact = logp;
      Sums& sum = sums[i];
      sum.nll -= logp.narrow(0, 0, n - 1).gather(1, targets.unsqueeze(1)).sum().item<double>();
      sum.divergence += (exact.exp() * (exact - logp)).narrow(0, 0, n - 1).sum().item<double>();
      sum.same += (logp.argmax(-1) == exact.argmax(-1)).narrow(0, 0, n - 1).sum().item<int64_t>();
      sum.targets += n - 1;
    }
  }
  fmt::print("| products | perplexity | mean KL | same most likely token |\n|---|---|---|---|\n");
  for (size_t i = 0; i < kinds.size(); ++i) {
    const auto targets = static_cast<double>(sums[i].targets);
    fmt::print("| {} | {:.4f} | {:.2g} | {:.2f} % |\n", kinds[i].first,
               std::exp(sums[i].nll / targets), sums[i].divergence / targets,
               100 * static_cast<double>(sums[i].same) / targets);
  }
  fmt::print("\n{} tokens in windows of {}\n", sums[0].targets, kWindow);
  return 0;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: digits_table MODEL TEXT [TOKENS]\n");
    return 2;
  }
  try {
    return tessera::bench::table(argv[1], argv[2], argc > 3 ? std::atoll(argv[3]) : 4096);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
