// Optimizers in recipes: the keys of each update rule, and parameter groups. Torch-free.
// Definitions are with the rules.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tessera/spec/type_union.h"

namespace tessera::train {

enum class MomentStorage {
  float32,
  int8,  // in blocks of 256 with a scale (Dettmers et al. 2022, arXiv:2110.02861)
};
enum class AdafactorForm {
  torch,         // as torch.optim.Adafactor
  transformers,  // as fairseq's and transformers' Adafactor
};
enum class MuonScale {
  original,         // sqrt(max(1, rows / columns))
  match_rms_adamw,  // 0.2 sqrt(max(rows, columns)): AdamW's rate and decay fit
  spectral,         // sqrt(rows / columns)
};
enum class Graft {
  adam,  // an update has the norm that Adam's would have
  none,
};

}  // namespace tessera::train

template <>
struct tessera::spec::EnumNames<tessera::train::MomentStorage> {
  using E = tessera::train::MomentStorage;
  static constexpr std::array names{std::pair{E::float32, "float32"}, std::pair{E::int8, "int8"}};
};
template <>
struct tessera::spec::EnumNames<tessera::train::AdafactorForm> {
  using E = tessera::train::AdafactorForm;
  static constexpr std::array names{std::pair{E::torch, "torch"},
                                    std::pair{E::transformers, "transformers"}};
};
template <>
struct tessera::spec::EnumNames<tessera::train::MuonScale> {
  using E = tessera::train::MuonScale;
  static constexpr std::array names{std::pair{E::original, "original"},
                                    std::pair{E::match_rms_adamw, "match_rms_adamw"},
                                    std::pair{E::spectral, "spectral"}};
};
template <>
struct tessera::spec::EnumNames<tessera::train::Graft> {
  using E = tessera::train::Graft;
  static constexpr std::array names{std::pair{E::adam, "adam"}, std::pair{E::none, "none"}};
};

namespace tessera::train {

// --- keys of each rule: kName in recipes, kRate and kDecay are the defaults ---

struct AdamWKeys {
  static constexpr const char* kName = "adamw";
  static constexpr double kRate = 1e-3, kDecay = 0.1;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  MomentStorage moments = MomentStorage::float32;
  static constexpr auto fields() {
    using C = AdamWKeys;
    using spec::field;
    return std::tuple{field("betas", &C::betas, "decay of the two moments, each in [0, 1)",
                            {.min = 0, .below = 1}),
                      field("eps", &C::eps, "added to the root of the second moment", {.min = 0}),
                      field("moments", &C::moments,
                            "storage of the moments; int8: a quarter of the memory, for parameters "
                            "of 4096 elements "
                            "or more")};
  }
};

/// AdamW with decay as a term of the gradient.
struct AdamKeys : AdamWKeys {
  static constexpr const char* kName = "adam";
  static constexpr double kDecay = 0;
};

struct SgdKeys {
  static constexpr const char* kName = "sgd";
  static constexpr double kRate = 0.1, kDecay = 0;
  double momentum = 0.9;
  double dampening = 0;
  bool nesterov = false;
  static constexpr auto fields() {
    using C = SgdKeys;
    using spec::field;
    return std::tuple{
        field("momentum", &C::momentum, "decay of the sum of gradients, in [0, 1); 0 = none",
              {.min = 0, .below = 1}),
        field("dampening", &C::dampening, "of the gradient in that sum, from the second update on",
              {.min = 0, .below = 1}),
        field("nesterov", &C::nesterov, "steps along the gradient and the sum")};
  }
};

struct LionKeys {
  static constexpr const char* kName = "lion";
  static constexpr double kRate = 1e-4, kDecay = 1;
  std::vector<double> betas = {0.9, 0.99};
  static constexpr auto fields() {
    using C = LionKeys;
    return std::tuple{spec::field("betas", &C::betas,
                                  "share of the moment in the step, and its decay; each in [0, 1)",
                                  {.min = 0, .below = 1})};
  }
};

struct AdafactorKeys {
  static constexpr const char* kName = "adafactor";
  static constexpr double kRate = 0.01, kDecay = 0;
  AdafactorForm form = AdafactorForm::torch;
  double decay_power = 0.8;
  double clip = 1;
  double smallest_rms = 1e-3;
  double beta1 = 0;
  bool scale_parameter = true;
  static constexpr auto fields() {
    using C = AdafactorKeys;
    using spec::field;
    return std::tuple{
        field("form", &C::form, "whose definition; torch limits the rate by 1 / sqrt(t)"),
        field("decay_power", &C::decay_power, "update t replaces t^-power of the second moments",
              {.min = 0}),
        field("clip", &C::clip, "limit of the root mean square of an update before the rate",
              {.above = 0}),
        field("smallest_rms", &C::smallest_rms,
              "least size of a parameter by which its rate is multiplied", {.min = 0}),
        field("beta1", &C::beta1, "transformers: decay of a first moment, in [0, 1); 0 = none",
              {.min = 0, .below = 1}),
        field("scale_parameter", &C::scale_parameter,
              "transformers: the rate is relative to the size of the parameter; torch: always")};
  }
};

/// AdamW for parameters that are no matrices, with a rule for matrices.
struct BesideKeys {
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  static constexpr auto fields() {
    using C = BesideKeys;
    using spec::field;
    return std::tuple{field("lr", &C::lr, "learning rate", {.min = 0}),
                      field("betas", &C::betas, "decay of the two moments, each in [0, 1)",
                            {.min = 0, .below = 1}),
                      field("eps", &C::eps, "added to the root of the second moment", {.min = 0})};
  }
};

struct MuonKeys {
  static constexpr const char* kName = "muon";
  static constexpr double kRate = 0.02, kDecay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  int64_t iterations = 5;
  MuonScale scale = MuonScale::original;
  BesideKeys adamw = {};
  static constexpr auto fields() {
    using C = MuonKeys;
    using spec::field;
    return std::tuple{
        field("momentum", &C::momentum, "decay of the mean of gradients, in [0, 1)",
              {.min = 0, .below = 1}),
        field("nesterov", &C::nesterov, "steps along the gradient and the mean"),
        field("iterations", &C::iterations, "of Newton and Schulz", {.min = 1}),
        field("scale", &C::scale, "what an orthogonal step of a matrix is multiplied by"),
        field("adamw", &C::adamw, "for embeddings, heads, norms, biases")};
  }
};

struct SoapKeys {
  static constexpr const char* kName = "soap";
  static constexpr double kRate = 3e-3, kDecay = 0.01;
  std::vector<double> betas = {0.95, 0.95};
  double eps = 1e-8;
  int64_t every = 10;
  int64_t largest = 4096;
  static constexpr auto fields() {
    using C = SoapKeys;
    using spec::field;
    return std::tuple{field("betas", &C::betas, "decay of the two moments, each in [0, 1)",
                            {.min = 0, .below = 1}),
                      field("eps", &C::eps, "added to the root of the second moment", {.min = 0}),
                      field("every", &C::every, "updates between turns of the basis", {.min = 1}),
                      field("largest", &C::largest,
                            "a side of a matrix beyond it has no basis of its own", {.min = 1})};
  }
};

struct ShampooKeys {
  static constexpr const char* kName = "shampoo";
  static constexpr double kRate = 1e-3, kDecay = 0.1;
  std::vector<double> betas = {0.9, 0.95};
  double eps = 1e-8;
  int64_t every = 10;
  int64_t largest = 4096;
  double root_eps = 1e-6;
  Graft graft = Graft::adam;
  static constexpr auto fields() {
    using C = ShampooKeys;
    using spec::field;
    return std::tuple{
        field("betas", &C::betas, "decay of the moments and of the two factors, each in [0, 1)",
              {.min = 0, .below = 1}),
        field("eps", &C::eps, "added to the root of the second moment", {.min = 0}),
        field("every", &C::every, "updates between new roots", {.min = 1}),
        field("largest", &C::largest, "a side of a matrix beyond it has no factor", {.min = 1}),
        field("root_eps", &C::root_eps, "added to the eigenvalues of a factor, of its largest one",
              {.min = 0}),
        field("graft", &C::graft, "grafting: optimizer whose update norm is used")};
  }
};

struct ScheduleFreeKeys {
  static constexpr const char* kName = "schedule_free_adamw";
  static constexpr double kRate = 2.5e-3, kDecay = 0.1;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_power = 2;
  static constexpr auto fields() {
    using C = ScheduleFreeKeys;
    using spec::field;
    return std::tuple{
        field("betas", &C::betas,
              "share of the average in what gradients are taken at, more than 0; decay of the "
              "second moment",
              {.min = 0, .below = 1}),
        field("eps", &C::eps, "added to the root of the second moment", {.min = 0}),
        field("weight_power", &C::weight_power,
              "an update counts in the average by its largest rate so far to this power",
              {.min = 0})};
  }
};

/// The table of optimizers.
using RuleKeys = std::variant<AdamWKeys,
                              AdamKeys,
                              SgdKeys,
                              LionKeys,
                              AdafactorKeys,
                              MuonKeys,
                              SoapKeys,
                              ShampooKeys,
                              ScheduleFreeKeys>;

/// A rule with its base learning rate, which the schedule multiplies.
struct RuleRecipe {
  RuleKeys keys = AdamWKeys{};
  double lr = AdamWKeys::kRate;
};

/// A parameter group with settings of its own.
struct GroupRecipe {
  std::vector<std::string> match = {};
  double lr_factor = 1;
  std::optional<double> weight_decay = {};
  bool frozen = false;
  std::optional<RuleRecipe> optimizer = {};  // if it differs from the recipe's

  static constexpr auto fields() {
    using C = GroupRecipe;
    using spec::field;
    return std::tuple{
        field("match", &C::match, "names of parameters, * for any characters", {.required = true}),
        field("lr_factor", &C::lr_factor, "factor on the learning rate", {.min = 0}),
        field("weight_decay", &C::weight_decay, "of those that decay; null = that of the optimizer",
              {.min = 0}),
        field("frozen", &C::frozen, "freeze these parameters; no gradient is computed")};
  }
};

/// Average of the weights during the run, which is evaluated and saved as the model.
struct AverageRecipe {
  double decay = 0.999;
  int64_t from = 0;
  static constexpr auto fields() {
    using C = AverageRecipe;
    using spec::field;
    return std::tuple{
        field("decay", &C::decay, "e = decay e + (1 - decay) w after every update; in [0, 1)",
              {.min = 0, .below = 1}),
        field("from", &C::from, "updates before it begins, with the weights as they are then",
              {.min = 0})};
  }
};

struct OptimizerRecipe {
  RuleKeys rule = AdamWKeys{};
  double lr = AdamWKeys::kRate;
  double weight_decay = AdamWKeys::kDecay;
  std::optional<AverageRecipe> average = {};
  std::vector<GroupRecipe> groups = {};
};

/// Reads and checks; `scope` is its position. Throws Error(spec).
OptimizerRecipe read_optimizer(const spec::Json& json, const spec::Scope& scope);
/// The keys with every default, except keys added later.
spec::Json dump_optimizer(const OptimizerRecipe& recipe);
spec::Json optimizer_schema();

/// Throws Error(spec) that begins with `where` unless both are in [0, 1).
void check_betas(const std::vector<double>& betas, const std::string& where);

}  // namespace tessera::train
