// What a run measures of its gradients, against what other runs and checkpoints say of the same.
#include <cmath>

#include "tessera/format/safetensors.h"
#include "tessera/train/loop/gradient_norms.h"
#include "tessera/train/loop/trainer.h"
#include "tessera/train/runs/run_folder.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::measures_test {
namespace {

namespace fs = std::filesystem;

struct Setting {
  TemporaryFolder folder;
  Json json = tiny_recipe(folder.write("text.txt", counting_text(3000)));

  std::vector<LogLine> train(const std::string& name,
                             const std::vector<std::string>& overrides,
                             int64_t crash = 0) const {
    std::vector<LogLine> lines;
    TrainOptions options;
    options.resume = true;
    options.on_step = [&](const LogLine& line, int64_t) {
      lines.push_back(line);
      if (line.step == crash) throw std::runtime_error("crash");
    };
    const Recipe recipe = read_recipe(json, "", overrides);
    if (crash > 0)
      EXPECT_THROW(train::train(recipe, folder / name, options), std::runtime_error);
    else
      train::train(recipe, folder / name, options);
    return lines;
  }
};

TEST(Measures, NormsByLayerAreThoseOfTheCheckpoints) {
  const Setting s;
  const auto lines = s.train("a", {"train.steps=3", "watch.norms=2", "checkpoint.every=1",
                                   "checkpoint.keep=0", "train.log_every=1000"});
  EXPECT_TRUE(lines[0].norms.empty());
  EXPECT_TRUE(lines[2].norms.empty());
  const Json& norms = lines[1].norms;
  const auto at = [&](int step) {
    return format::open_safetensors(checkpoint_folder(s.folder / "a", step) / "model.safetensors");
  };
  const format::TensorFile one = at(1), two = at(2);
  std::map<std::string, std::pair<double, double>> found;  // weights and what changed in them
  for (const auto& view : two.tensors()) {
    const auto *now = reinterpret_cast<const float*>(view.data.data()),
               *before = reinterpret_cast<const float*>(one.at(view.name).data.data());
    auto& [weight, update] = found[layer_of(view.name)];
    for (size_t i = 0; i < view.data.size() / 4; ++i) {
      weight += static_cast<double>(now[i]) * now[i];
      update += std::pow(static_cast<double>(now[i]) - before[i], 2);
    }
  }
  ASSERT_EQ(norms.size(), found.size());
  double gradient = 0;
  for (const auto& [layer, squares] : found) {
    ASSERT_TRUE(norms.contains(layer)) << layer;
    EXPECT_NEAR(norms[layer]["weight"].get<double>(), std::sqrt(squares.first), 1e-6) << layer;
    EXPECT_NEAR(norms[layer]["update"].get<double>(), std::sqrt(squares.second), 1e-6) << layer;
    gradient += std::pow(norms[layer]["gradient"].get<double>(), 2);
  }
  EXPECT_NEAR(std::sqrt(gradient), lines[1].grad_norm, 1e-6 * lines[1].grad_norm);
  EXPECT_NE(read_text_file(s.folder / "a/log.csv").find("norms/layers.0.mixer/gradient"),
            std::string::npos);
}

/// At a rate of 0 the weights stay, so that runs of single windows say what each part of a larger
/// batch was.
TEST(Measures, NoiseScaleIsThatOfTheParts) {
  const Setting s;
  const std::vector<std::string> still{"optimizer.lr=0", "schedule.type=constant",
                                       "schedule.warmup=0", "train.eval_every=0"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), still.begin(), still.end());
    return more;
  };
  const auto parts = s.train("parts", with({"train.batch=1", "train.steps=4"})),
             whole = s.train("whole", with({"train.batch=1", "train.accumulate=4", "train.steps=1",
                                            "watch.noise_scale=1"}));
  double squares = 0;
  for (const LogLine& line : parts) squares += line.grad_norm * line.grad_norm / 4;
  const double square = whole[0].grad_norm * whole[0].grad_norm, tokens = 16,
               noise = (squares - square) / (1 / tokens - 1 / (4 * tokens)),
               signal = square - noise / (4 * tokens);
  ASSERT_GT(noise, 0);
  ASSERT_GT(signal, 0);
  ASSERT_TRUE(whole[0].noise_scale);
  EXPECT_NEAR(*whole[0].noise_scale, noise / signal, 1e-3 * noise / signal);
}

TEST(Measures, GoOnBitForBitAndChangeNothing) {
  const Setting s;
  const std::vector<std::string> how{"train.accumulate=2", "watch.noise_scale=3", "watch.norms=4"};
  const auto whole = s.train("whole", how);
  s.train("cut", how, 8);
  const auto rest = s.train("cut", how);  // from step 5 on
  ASSERT_EQ(rest.size(), 7u);
  for (const LogLine& line : rest) {
    const LogLine& same = whole[static_cast<size_t>(line.step - 1)];
    EXPECT_EQ(line.noise_scale, same.noise_scale) << line.step;
    EXPECT_EQ(line.norms, same.norms) << line.step;
  }
  EXPECT_TRUE(whole[5].noise_scale);
  const auto plain = s.train("plain", {"train.accumulate=2"});
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(plain[i].loss, whole[i].loss) << i;
}

TEST(Measures, NoiseOfOnePartIsRefused) {
  const Setting s;
  expect_error(
      ErrorKind::spec,
      "[watch.noise_scale] given with train.accumulate = 1: it compares gradients of micro-batches "
      "with that of the update; expected 2 or more parts, such as train.batch = 2 "
      "and train.accumulate = 2",
      [&] { read_recipe(s.json, "", {"watch.noise_scale=1"}); });
}

}  // namespace
}  // namespace tessera::train::measures_test
