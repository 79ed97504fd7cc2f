#include "tessera/kernels/basic/rowwise.h"
#include "tessera/nn/decode_step.h"
#include "tessera/nn/residual/damped.h"
#include "tessera/nn/residual/parallel.h"
#include "tessera/nn/residual/post_norm.h"
#include "tessera/nn/residual/pre_norm.h"
#include "tessera/nn/residual/reordered.h"
#include "tessera/nn/residual/sandwich.h"
#include "tessera/nn/step_products.h"

namespace tessera::nn {
namespace {

/// Where the norms of a group stand, and what multiplies its stream: x <- last(stream x + ...).
struct JoinOptions {
  const ResidualConfig& config;
  int before = -1, after = -1, last = -1;  // numbers of a branch's norms, -1 = none
  double stream = 1;
};

/// The decoding step of residuals that add what their branches make of the same x to it. A branch
/// without norms reads what the one before it read.
class JoinStep final : public ResidualStep {
 public:
  JoinStep(const JoinOptions& options, std::span<const BranchSteps> branches, int64_t width)
      : width_(width),
        scale_(static_cast<float>(options.config.scale)),
        stream_(static_cast<float>(options.stream)) {
    for (const BranchSteps& branch : branches) {
      const auto norm = [&](int number) {
        return number < 0 || branch.norms.empty() ? nullptr
                                                  : branch.norms[static_cast<size_t>(number)];
      };
      branches_.push_back({norm(options.before), norm(options.after), branch.norms.empty(),
                           StepNumbers(branch.gain),
                           branch.gain != nullptr && branch.gain->elements() == 1});
      last_ = norm(options.last);
      if (branch.sum_gain != nullptr) sum_gain_ = StepNumbers(branch.sum_gain);
    }
  }

  int64_t floats(int64_t n) const override { return places(n).floats(); }

  void run(Team& team,
           int64_t n,
           std::span<StepCall* const> parts,
           float* x_ND,
           float* memory,
           float* part_memory) const override {
    StepMemory pieces;
    float *normed = memory + pieces.take(n * width_), *out = memory + pieces.take(n * width_),
          *total = memory + pieces.take(sums(n));
    const Team::Share mine = team.share(n);
    const int64_t first = mine.begin * width_, rows = mine.end - mine.begin, own = rows * width_;
    float *x = x_ND + first, *y = out + first, *sum = sums(n) > 0 ? total + first : x;
    if (sums(n) > 0) std::copy_n(x, own, sum);
    const float* read = x_ND;
    for (size_t i = 0; i < branches_.size(); ++i) {
      const Joined& f = branches_[i];
      if (f.before) (*f.before)(x, rows, width_, normed + first);
      if (!f.reads_as_before) read = f.before ? normed : x_ND;
      parts[i]->run(team, read, out, part_memory);
      team.wait();
      if (f.after) (*f.after)(y, rows, width_, y);
      damp(f, own, y);
      for (int64_t j = 0; stream_ != 1 && j < own; ++j) sum[j] *= stream_;
      kernels::add(y, sum, own);
    }
    if (sum != x) std::copy_n(sum, own, x);
    if (const float* factor = sum_gain_.data(); factor != nullptr)
      for (int64_t j = 0; j < own; ++j) x[j] *= *factor;
    if (last_) (*last_)(x, rows, width_, x);
  }

 private:
  struct Joined {
    std::shared_ptr<const NormStep> before, after;
    bool reads_as_before;
    StepNumbers gain;
    bool one_gain;
  };

  /// Several branches read x, while their sum is formed.
  int64_t sums(int64_t n) const { return branches_.size() > 1 ? n * width_ : 0; }
  StepMemory places(int64_t n) const {
    StepMemory memory;
    for (const int64_t floats : {n * width_, n * width_, sums(n)}) memory.take(floats);
    return memory;
  }

  /// damped() without dropout.
  void damp(const Joined& f, int64_t numbers, float* y) const {
    if (const float* gain = f.gain.data(); gain != nullptr)
      for (int64_t j = 0; j < numbers; ++j) y[j] *= gain[f.one_gain ? 0 : j % width_];
    for (int64_t j = 0; scale_ != 1 && j < numbers; ++j) y[j] *= scale_;
  }

  int64_t width_;
  float scale_, stream_;
  std::vector<Joined> branches_;
  std::shared_ptr<const NormStep> last_;
  StepNumbers sum_gain_;
};

/// Null where a gain is still to change.
std::shared_ptr<const ResidualStep> join_step(const JoinOptions& options,
                                              std::span<const BranchSteps> branches,
                                              int64_t width) {
  for (const BranchSteps& branch : branches)
    if (!StepNumbers::stay(branch.gain) || !StepNumbers::stay(branch.sum_gain)) return nullptr;
  return std::make_shared<JoinStep>(options, branches, width);
}

class PreNorm final : public Residual {
 public:
  explicit PreNorm(const PreNormConfig& config) : config_(config) {}
  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& x_ND = stream.front();
    const Branch& f = branches[0];
    return {scaled_sum(
        ops::plus(x_ND, damped(config_, f.run(f.input(x_ND, context), context), f, context)), f)};
  }

  std::shared_ptr<const ResidualStep> step(std::span<const BranchSteps> branches,
                                           int64_t width) const override {
    if (!others_at_default(config_, {"scale", "dropout", "gain", "gain_init", "sum_gain"}))
      return nullptr;
    return join_step({.config = config_, .before = 0}, branches, width);
  }

 private:
  PreNormConfig config_;
};

class PostNorm final : public Residual {
 public:
  explicit PostNorm(const PostNormConfig& config) : config_(config) {}
  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& x_ND = stream.front();
    const Branch& f = branches[0];
    const Tensor scaled_ND = config_.stream == 1 ? x_ND : x_ND * config_.stream;
    const Tensor in = f.read ? f.read(x_ND, context) : x_ND;
    return {f.norms[0]->forward(
        ops::plus(scaled_ND, damped(config_, f.run(in, context), f, context)), context)};
  }

  std::shared_ptr<const ResidualStep> step(std::span<const BranchSteps> branches,
                                           int64_t width) const override {
    if (!others_at_default(config_, {"stream", "scale", "dropout", "gain", "gain_init"}))
      return nullptr;
    return join_step({.config = config_, .last = 0, .stream = config_.stream}, branches, width);
  }

 private:
  PostNormConfig config_;
};

class Sandwich final : public Residual {
 public:
  explicit Sandwich(const SandwichConfig& config) : config_(config) {}
  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& x_ND = stream.front();
    const Branch& f = branches[0];
    Tensor out = f.norms[1]->forward(f.run(f.norms[0]->forward(x_ND, context), context), context);
    return {scaled_sum(ops::plus(x_ND, damped(config_, std::move(out), f, context)), f)};
  }

  std::shared_ptr<const ResidualStep> step(std::span<const BranchSteps> branches,
                                           int64_t width) const override {
    if (!others_at_default(config_, {"scale", "dropout", "gain", "gain_init", "sum_gain"}))
      return nullptr;
    return join_step({.config = config_, .before = 0, .after = 1}, branches, width);
  }

 private:
  SandwichConfig config_;
};

class Reordered final : public Residual {
 public:
  explicit Reordered(const ReorderedConfig& config) : config_(config) {}
  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& x_ND = stream.front();
    const Branch& f = branches[0];
    const Tensor in = f.read ? f.read(x_ND, context) : x_ND;
    const Tensor y_ND = f.norms[0]->forward(f.run(in, context), context);
    return {scaled_sum(ops::plus(x_ND, damped(config_, y_ND, f, context)), f)};
  }

  std::shared_ptr<const ResidualStep> step(std::span<const BranchSteps> branches,
                                           int64_t width) const override {
    if (!others_at_default(config_, {"scale", "dropout", "gain", "gain_init", "sum_gain"}))
      return nullptr;
    return join_step({.config = config_, .after = 0}, branches, width);
  }

 private:
  ReorderedConfig config_;
};

class Parallel final : public Residual {
 public:
  explicit Parallel(const ParallelConfig& config) : config_(config) {}
  Stream forward(Stream stream, std::span<const Branch> branches, Context& context) const override {
    const Tensor& x_ND = stream.front();
    Tensor normed, sum = x_ND;
    for (const Branch& f : branches) {
      if (!f.norms.empty())
        normed =
            f.norms[0]->forward(x_ND, context);  // the first branch's norm serves those without
      sum = ops::plus(sum, damped(config_, f.run(normed, context), f, context));
    }
    return {sum};
  }

  std::shared_ptr<const ResidualStep> step(std::span<const BranchSteps> branches,
                                           int64_t width) const override {
    if (!others_at_default(config_, {"norms", "scale", "dropout", "gain", "gain_init"}))
      return nullptr;
    return join_step({.config = config_, .before = 0}, branches, width);
  }

 private:
  ParallelConfig config_;
};

}  // namespace

std::unique_ptr<Residual> build(const PreNormConfig& config, const Builder&) {
  return std::make_unique<PreNorm>(config);
}
std::unique_ptr<Residual> build(const PostNormConfig& config, const Builder&) {
  return std::make_unique<PostNorm>(config);
}
std::unique_ptr<Residual> build(const SandwichConfig& config, const Builder&) {
  return std::make_unique<Sandwich>(config);
}
std::unique_ptr<Residual> build(const ReorderedConfig& config, const Builder&) {
  return std::make_unique<Reordered>(config);
}
std::unique_ptr<Residual> build(const ParallelConfig& config, const Builder&) {
  return std::make_unique<Parallel>(config);
}

}  // namespace tessera::nn
