// Training gives the same numbers for any number of threads: losses and weights, bit for bit. Of
// every mechanism, the contract suite's check "threads" says so.
#include <ATen/Parallel.h>

#include "tessera/base/threads.h"
#include "tessera/format/safetensors.h"
#include "tessera/infer/evaluation/evaluate.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

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
