// Seconds per training step of a GPT-2-like decoder (4 layers, 768 wide, 256 tokens of vocabulary,
// B = 8, T = 256) as the trainer runs it: data, forward, loss, backward, norm of the gradients,
// AdamW. Peer: train_step_torch.py; both: train_step.sh.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <vector>

#include "tessera/base/allocator.h"
#include "tessera/base/cpu.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/rng.h"
#include "tessera/train/loop/trainer.h"

int main(int argc, char** argv) {
  using namespace tessera;
  namespace fs = std::filesystem;
  const int warmup = 2, steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  keep_freed_memory();
  cap_onednn();
  std::string pattern = (fs::temp_directory_path() / "tessera_step_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) return 1;
  const fs::path folder = pattern;

  std::string text(1 << 20, ' ');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(RandomKey(1).bits(i) & 0xff);
  write_file_atomically(folder / "text", text);
  const auto json = spec::parse_json(fmt::format(R"({{
    "spec": {{"tessera": 1, "arch": "decoder", "vocab": 256, "d_model": 768,
             "embed": {{"type": "token", "position": {{"type": "learned", "n_positions": 256}}}},
             "norm": {{"type": "layer_norm", "eps": 1e-5}},
             "layers": [{{"repeat": 4, "mixer": {{"type": "attention", "n_heads": 12, "bias": {{"q": true, "k": true, "v": true, "o": true}}}}}}],
             "ffn": {{"type": "mlp", "act": "gelu_tanh", "d_hidden": 3072}}, "head": {{"type": "tied"}}}},
    "data": {{"train": ["text"]}},
    "train": {{"steps": {}, "batch": 8, "length": 256, "clip_norm": 0, "log_every": 1000000}}}})",
                                                 warmup + steps),
                                     "bench");

  std::vector<double> seconds;
  auto before = std::chrono::steady_clock::now();
  const auto on_step = [&](const train::LogLine& line, int64_t) {
    const auto now = std::chrono::steady_clock::now();
    if (line.step > warmup) seconds.push_back(std::chrono::duration<double>(now - before).count());
    before = std::chrono::steady_clock::now();
  };
  train::train(train::read_recipe(json, folder), folder / "run", {.on_step = on_step});
  fs::remove_all(folder);
  std::sort(seconds.begin(), seconds.end());
  fmt::print("{:.4f}\n", seconds[seconds.size() / 2]);
}
