#include "tessera/train/objective/denoising/noise_objective.h"

#include <fmt/format.h>

#include "tessera/train/objective/denoising/noise_source.h"
#include "tessera/train/objective/next_token/next_token_objective.h"

namespace tessera::train {
namespace {

/// The context of the noises of a plan.
NoiseScope noise_scope(const DataPlan& plan, const text::Tokenizer& tokenizer) {
  return {plan.spec,
          tokenizer,
          {plan.spec.encoder != nullptr, plan.train.length},
          separator_of(plan.data.files(), tokenizer)};
}

class NoiseObjective final : public ObjectiveConfig {
 public:
  explicit NoiseObjective(std::vector<NoiseShare> shares) : shares_(std::move(shares)) {}
  std::string type() const override { return type_of(shares_); }
  spec::Json dump() const override { return dump_noises(shares_); }

  std::vector<std::string> kinds() const override {
    std::vector<std::string> out;
    for (size_t i = 0; i < shares_.size(); ++i)
      out.push_back(fmt::format("{}_{}", shares_[i].noise->type(), i + 1));
    return out;
  }

  void check(const ModelPlan& plan) const override {
    check_text_alone(plan.data, type());
    if (plan.train.windows == WindowOrder::carried)
      fail(ErrorKind::spec, "train.windows",
           "objective \"{}\" rearranges texts, and samples are independent; use "
           "\"isolated\"",
           type());
    const text::Tokenizer tokenizer = open_tokenizer(plan.data);
    build_noises(shares_, noise_scope(plan, tokenizer));
    check_predicts_tokens(plan.spec, type());
  }

  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path& cache,
                                const CancelToken* cancel) const override {
    std::vector<double> weights;
    for (const NoiseShare& share : shares_) weights.push_back(share.weight);
    return of_texts(
        plan, cache, cancel,
        [&](TokenData data, const text::Tokenizer& tokenizer, const LengthSchedule& ramp) {
          NoiseSource::Options options{std::nullopt, plan.train.length, plan.train.seed, ramp};
          if (plan.spec.encoder) options.start = plan.spec.start;
          return std::make_unique<NoiseSource>(std::move(data), weights,
                                               build_noises(shares_, noise_scope(plan, tokenizer)),
                                               options);
        });
  }

 private:
  std::vector<NoiseShare> shares_;
};

ObjectivePtr read(const spec::Json& json,
                  const spec::Scope& scope,
                  const model::ModelSpec& spec,
                  const DataRecipe& data) {
  std::vector<NoiseShare> shares = read_noises(json, scope);
  // next-token prediction alone is the default objective
  if (type_of(shares) == "causal_lm" && spec.arch == model::Arch::decoder && !data.has_sources())
    return default_objective(spec, data);
  return std::make_shared<NoiseObjective>(std::move(shares));
}

}  // namespace

std::vector<ObjectiveKind> noise_objective_kinds() {
  std::vector<ObjectiveKind> out;
  for (const std::string& type : noise_types())
    out.push_back({type, read, [type] { return noise_schema(type); }});
  return out;
}

}  // namespace tessera::train
