#include "tessera/train/objective/contrastive/contrastive_objective.h"

#include <algorithm>

#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/sentence_modules.h"
#include "tessera/train/data/example_lines.h"
#include "tessera/train/objective/contrastive/contrastive_source.h"
#include "tessera/train/recipe/recipe.h"

namespace tessera::train {
namespace {

/// True if a part has dropout: then a text computed twice has two vectors.
bool drops(const spec::Json& json) {
  if (json.is_array() || json.is_object())
    for (const auto& [key, value] : json.items()) {
      if (key.ends_with("dropout") && value.is_number() && value.get<double>() > 0) return true;
      if (drops(value)) return true;
    }
  return false;
}

/// The sentence-transformers folder of the initial model; "" for other models.
std::filesystem::path sentence_folder(const InitRecipe* init) {
  const std::filesystem::path start =
      init ? convert::checkpoint_place(init->from) : std::filesystem::path();
  return std::filesystem::is_regular_file(start / "modules.json") ? start : std::filesystem::path();
}

/// True if a model uses only these poolings. Others, such as those with a dense layer, are trained
/// without the modules after the pooling.
bool pools_alone(const convert::SentenceModules& modules,
                 const std::vector<convert::Pooling>& poolings) {
  return modules.poolings == poolings &&
         std::all_of(modules.layers.begin(), modules.layers.end(),
                     [](const convert::SentenceLayer& layer) {
                       return layer.kind == convert::SentenceLayer::Kind::normalize;
                     });
}

class ContrastiveObjective final : public ObjectiveOf<ContrastiveRecipe> {
 public:
  using ObjectiveOf::ObjectiveOf;

  void check(const ModelPlan& plan) const override {
    if (plan.spec.encoder)
      fail(ErrorKind::spec, "spec.arch",
           "\"{}\" with objective \"contrastive\"; expected \"encoder\" or \"decoder\"",
           name_of(plan.spec.arch));
    check_example_recipe(plan, type());
    examples_of(plan.data.files());
    const bool pools = keys_.pooling == TextVector::pooler;
    if (pools && !plan.spec.pooler)
      fail(ErrorKind::spec, "objective.pooling",
           "\"pooler\", and the spec has none; expected mean, cls, max or last");
    if (keys_.pooling == TextVector::cls && plan.spec.causal())
      fail(ErrorKind::spec, "objective.pooling",
           "\"cls\" of a decoder, whose first token has seen nothing else; expected mean, max or "
           "last");
    // settings that checkpoints copy from it are read first
    if (const auto start = sentence_folder(plan.init); !start.empty())
      convert::sentence_modules_of(start);
    const int64_t width = pools ? plan.spec.d_model : plan.spec.width_out();
    for (size_t i = 0; i < keys_.dims.size(); ++i)
      if (keys_.dims[i] < 1 || keys_.dims[i] >= width)
        fail(ErrorKind::spec, fmt::format("objective.dims[{}]", i),
             "found {}; expected 1 to {}, fewer than the vector has", keys_.dims[i], width - 1);
  }

  std::unique_ptr<Dataset> open(const DataPlan& plan,
                                const std::filesystem::path&,
                                const CancelToken* cancel) const override {
    auto source = open_contrastive(plan, keys_, open_tokenizer(plan.data), cancel);
    const auto* lora = plan.adapter ? adapter_keys<LoraAdapter>(*plan.adapter) : nullptr;
    if (source->unsupervised() && !(lora && lora->dropout > 0) && !drops(model::resolve(plan.spec)))
      fail(ErrorKind::spec, "spec",
           "no line has a \"{}\", so each text is paired with itself under another dropout mask, "
           "and the spec has dropout 0; expected 0.1 or so",
           keys_.positive_key);
    return source;
  }

  /// Writes the sentence-transformers files of the model: those of the initial model if they agree,
  /// with its prompts and maximum length in any case.
  void write_settings(const ModelPlan& plan,
                      const std::filesystem::path& checkpoint) const override {
    if (keys_.pooling == TextVector::pooler) return;  // sentence-transformers has no such pooling
    convert::SentenceModules modules;
    modules.poolings = {convert::pooling_named(spec::enum_name(keys_.pooling))};
    const std::filesystem::path start = sentence_folder(plan.init);
    if (!start.empty()) {
      const convert::SentenceModules own = convert::sentence_modules_of(start);
      if (pools_alone(own, modules.poolings))
        return convert::copy_sentence_modules(start, checkpoint);
      modules.include_prompt = own.include_prompt;
      convert::copy_sentence_settings(start, checkpoint);
    }
    convert::write_sentence_modules(modules, plan.spec.width_out(), checkpoint);
  }
};

}  // namespace

std::vector<ObjectiveKind> contrastive_kinds() {
  return {objective_kind<ContrastiveObjective, ContrastiveRecipe>()};
}

}  // namespace tessera::train
