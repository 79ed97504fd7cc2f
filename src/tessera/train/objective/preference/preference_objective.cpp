#include "tessera/train/objective/preference/preference_objective.h"

#include <fmt/ranges.h>

#include "tessera/model/call_plan.h"
#include "tessera/text/chat/chat_formats.h"
#include "tessera/train/data/example_lines.h"
#include "tessera/train/objective/chat/chat_source.h"
#include "tessera/train/objective/next_token/next_token_objective.h"
#include "tessera/train/objective/preference/preference_source.h"

namespace tessera::train {
namespace {

class PreferenceObjective final : public ObjectiveOf<PreferenceRecipe> {
 public:
  using ObjectiveOf::ObjectiveOf;

  spec::Json dump() const override {
    spec::Json json = ObjectiveOf::dump();
    if (keys_.loss != PreferenceLoss::simpo) json.erase("margin");
    return json;
  }

  void check(const ModelPlan& plan) const override {
    check_predicts_tokens(plan.spec, type());
    if (plan.spec.arch != model::Arch::decoder)
      fail(ErrorKind::spec, "spec.arch",
           "\"{}\" with objective \"preference\"; expected \"decoder\"", name_of(plan.spec.arch));
    check_example_recipe(plan, type());
    const TextData& data = plan.data.files();
    if (!has_keys(data.format))
      fail(ErrorKind::spec, "data.format",
           "found \"{}\"; objective \"preference\" reads \"jsonl\", \"csv\" or \"tsv\"",
           spec::enum_name(data.format));
    if (const int64_t prefix = model::CallPlan(plan.spec).first_call(0); prefix > 0)
      fail(ErrorKind::spec, "spec",
           "the first {} tokens of every document see each other, answers among them; expected "
           "pattern \"prefix\" with length 0, which reads the prompt as its prefix",
           prefix);
    if (keys_.format && !text::chat_format_source(*keys_.format))
      fail(ErrorKind::spec, "objective.format", "found \"{}\"; expected one of {}", *keys_.format,
           fmt::join(text::chat_format_names(), ", "));
    const bool smooths = keys_.loss == PreferenceLoss::dpo || keys_.loss == PreferenceLoss::simpo;
    if (keys_.smoothing > 0 && !smooths)
      fail(ErrorKind::spec, "objective.smoothing", "has no meaning for loss \"{}\"",
           spec::enum_name(keys_.loss));
    if (keys_.loss == PreferenceLoss::orpo && !keys_.means())
      fail(ErrorKind::spec, "objective.by_length",
           "false, but the odds of \"orpo\" are those of mean log-probabilities; leave it out");
  }

  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path&,
                                const CancelToken* cancel) const override {
    return open_pairs(plan, keys_, open_tokenizer(plan.data), cancel);
  }

  void write_settings(const ModelPlan& plan,
                      const std::filesystem::path& checkpoint) const override {
    write_chat_format({.format = keys_.format}, plan.data.files(), checkpoint);
  }
};

}  // namespace

std::vector<ObjectiveKind> preference_kinds() {
  ObjectiveKind kind = objective_kind<PreferenceObjective, PreferenceRecipe>();
  kind.read = [](const spec::Json& json, const spec::Scope& scope, const model::ModelSpec&,
                 const DataRecipe&) -> ObjectivePtr {
    const auto keys = read_objective_keys<PreferenceRecipe>(json, scope);
    if (json.contains("margin") && keys.loss != PreferenceLoss::simpo)
      fail(ErrorKind::spec, scope.at("margin").path,
           "has no meaning for loss \"{}\"; only \"simpo\" has it", spec::enum_name(keys.loss));
    return std::make_shared<PreferenceObjective>(keys);
  };
  return {kind};
}

}  // namespace tessera::train
