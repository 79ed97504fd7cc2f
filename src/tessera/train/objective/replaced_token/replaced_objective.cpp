#include "tessera/train/objective/replaced_token/replaced_objective.h"

#include "tessera/train/data/dataset.h"
#include "tessera/train/objective/masked_lm/masked_objective.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {
namespace {

using spec::Json;

constexpr int64_t kNarrower = 4;

/// Divides widths and heads of the parts of layers.
void divide_widths(Json& json) {
  if (json.is_array())
    for (Json& one : json) divide_widths(one);
  if (!json.is_object()) return;
  for (auto& [key, value] : json.items()) {
    const bool divides = key == "d_hidden" || key == "n_heads" || key == "n_kv_heads";
    if (divides && value.is_number_integer())
      value = std::max<int64_t>(1, value.get<int64_t>() / kNarrower);
    else
      divide_widths(value);
  }
}

class ReplacedTokens final : public ObjectiveOf<ReplacedTokenRecipe> {
 public:
  ReplacedTokens(ReplacedTokenRecipe keys, model::ModelSpec generator)
      : ObjectiveOf(std::move(keys)), generator_(std::move(generator)) {}
  const model::ModelSpec& generator() const { return generator_; }

  Json dump() const override {
    Json json = ObjectiveOf::dump();
    json["generator"] = model::resolve(generator_);
    return json;
  }

  void check(const ModelPlan& plan) const override {
    check_masked(plan, keys_.masked(), type(), "token_score");
    const auto need = [](bool holds, const char* key, const std::string& what) {
      if (!holds) fail(ErrorKind::spec, std::string("objective.generator.") + key, "{}", what);
    };
    need(generator_.arch == model::Arch::encoder, "arch",
         fmt::format("\"{}\"; expected \"encoder\"", name_of(generator_.arch)));
    need(generator_.vocab == plan.spec.vocab, "vocab",
         fmt::format("found {}; the spec has {}", generator_.vocab, plan.spec.vocab));
    need(generator_.head && generator_.head.type() == "masked_lm", "head",
         fmt::format("found {}; expected \"masked_lm\"",
                     generator_.head ? fmt::format("\"{}\"", generator_.head.type()) : "none"));
    if (const int64_t limit = generator_.max_positions(); limit > 0)
      need(plan.train.length <= limit, "context",
           fmt::format("{} positions; train.length is {}", limit, plan.train.length));
    model::for_each_part(generator_, [&](const spec::AnyPart& part) {
      need(part.mechanism->slot != spec::Slot::router, "layers",
           fmt::format("router \"{}\", whose counts would be taken for the spec's; expected a "
                       "generator without experts",
                       part.type()));
    });
    for (const spec::ParamDecl& decl : model::parameters(generator_))
      need(!decl.rule, "layers",
           fmt::format("\"{}\" follows what its part counts; expected a generator without",
                       decl.name));
    if (plan.adapter)
      fail(ErrorKind::spec, "adapter",
           "given with objective \"replaced_token\", which trains two models; leave it out");
    if (plan.experts && plan.experts->changes())
      fail(ErrorKind::spec, "experts",
           "some come or go, with objective \"replaced_token\", which trains two models; leave it "
           "out");
    const auto no_tokens = [&](bool given, const char* key, const char* expected) {
      if (given)
        fail(ErrorKind::spec, key, "given with objective \"replaced_token\"; expected {}",
             expected);
    };
    no_tokens(plan.train.z_loss > 0, "train.z_loss", "0");
    no_tokens(plan.train.l2_wrap > 0, "train.l2_wrap", "0");
    no_tokens(plan.train.label_smoothing.share > 0, "train.label_smoothing", "share 0");
    no_tokens(plan.train.early_exit.scale > 0, "train.early_exit", "scale 0");
  }

  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path& cache,
                                const CancelToken* cancel) const override {
    return masked_windows(plan, keys_.masked(), cache, cancel);
  }

 private:
  model::ModelSpec generator_;
};

ObjectivePtr read_replaced(const Json& given,
                           const spec::Scope& scope,
                           const model::ModelSpec& spec,
                           const DataRecipe&) {
  Json json = given;
  Json own = json.value("generator", Json());
  json.erase("generator");
  auto keys = read_objective_keys<ReplacedTokenRecipe>(json, scope);
  if (own.is_null()) return std::make_shared<ReplacedTokens>(keys, quarter_width(spec));
  if (!own.is_object())
    fail(ErrorKind::spec, scope.at("generator").path,
         "found {}; expected a spec, or null for the recipe's own at a quarter of its width",
         spec::kind_of(own));
  try {
    return std::make_shared<ReplacedTokens>(keys, model::read_model_spec(own));
  } catch (const Error& error) {
    fail(error.kind(), scope.at("generator").path, "{}", error.what());
  }
}

}  // namespace

model::ModelSpec quarter_width(const model::ModelSpec& spec) {
  Json json = model::resolve(spec);
  try {
    const int64_t d = spec.d_model;
    if (d % kNarrower != 0)
      fail(ErrorKind::spec, "d_model", "{} is no multiple of {}", d, kNarrower);
    json["d_model"] = d / kNarrower;
    divide_widths(json["layers"]);
    Json& embed = json["embed"];
    const int64_t width = embed.value("width", d);
    embed["width"] = width;
    if (embed.value("project", Json("none")) == "none") embed["project"] = "sum";
    json.erase("head");
    json["heads"] = {{{"type", "masked_lm"}, {"width", width}}};
    return model::read_model_spec(json);
  } catch (const Error& error) {
    fail(ErrorKind::spec, "objective.generator",
         "missing, and the spec at a quarter of its width is no model ({}); expected a spec",
         error.what());
  }
}

const model::ModelSpec& generator_of(const ObjectiveConfig& objective) {
  return dynamic_cast<const ReplacedTokens&>(objective).generator();
}

std::vector<ObjectiveKind> replaced_token_kinds() {
  return {
      {ReplacedTokenRecipe::kType, read_replaced, [] {
         Json schema = spec::struct_schema<ReplacedTokenRecipe>();
         schema["properties"]["generator"] = {
             {"description",
              "spec of the model that puts tokens there; null = the recipe's own at a quarter of "
              "its width"}};
         return schema;
       }}};
}

}  // namespace tessera::train
