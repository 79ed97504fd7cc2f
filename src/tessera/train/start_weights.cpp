#include "tessera/train/start_weights.h"

#include <algorithm>

#include "tessera/convert/checkpoint.h"
#include "tessera/train/start.h"

namespace tessera::train {

bool is_of_head(const std::string& name) {
  return name.starts_with("head.") || name.starts_with("pooler.");
}

namespace {

/// "a", "b" and 3 more.
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i == 0 ? "\"" : ", \"") + names[i] + "\"";
  if (names.size() > kShown) text += fmt::format(" and {} more", names.size() - kShown);
  return text;
}

void refuse(const StartReport& report, const std::vector<std::string>& names, const char* what) {
  if (!names.empty())
    fail(ErrorKind::spec, "init.from",
         "{} {} {}; expected the parameters of the spec, or "
         "\"init.partial\": true",
         report.from, what, some_of(names));
}

}  // namespace

std::vector<std::string> StartReport::lines() const {
  std::vector<std::string> out{fmt::format("begins from {}: {} parameters kept", from, kept)};
  if (!fresh.empty())
    out.push_back(
        fmt::format("{} begin as the spec declares them: {}", fresh.size(), some_of(fresh)));
  if (!dropped.empty())
    out.push_back(
        fmt::format("{} of the model are left out: {}", dropped.size(), some_of(dropped)));
  if (!differs.empty())
    out.push_back(fmt::format("the spec is another than the model's, first at \"{}\"", differs));
  return out;
}

StartWeights start_weights(const Recipe& recipe) {
  StartWeights out{model::Weights::initial(recipe.spec, static_cast<uint64_t>(recipe.train.seed))};
  if (!recipe.init) return out;
  const convert::Checkpoint checkpoint = convert::load_checkpoint(start_of(recipe.init->from));
  StartReport report;
  report.from = recipe.init->from;
  report.differs =
      differing_key({{"spec", checkpoint.spec_json}}, {{"spec", model::resolve(recipe.spec)}});
  for (const auto& [decl, weight] : out.weights.all()) {
    const auto found =
        std::find_if(checkpoint.tensors.begin(), checkpoint.tensors.end(),
                     [&](const format::TensorView& view) { return view.name == decl.name; });
    if (found == checkpoint.tensors.end()) {
      report.fresh.push_back(decl.name);
      continue;
    }
    if (found->shape != decl.shape && recipe.init->partial && is_of_head(decl.name)) {
      report.fresh.push_back(decl.name);
      report.dropped.push_back(decl.name);
      continue;
    }
    if (found->shape != decl.shape)
      fail(ErrorKind::spec, "init.from", "{}: parameter \"{}\" has shape {}, the spec wants {}{}",
           report.from, decl.name, format::shape_text(found->shape), format::shape_text(decl.shape),
           report.differs.empty()
               ? ""
               : fmt::format("; the specs differ first at \"{}\"", report.differs));
    const ops::Weight stored = ops::Weight::stored(*found);
    const at::NoGradGuard no_gradients;
    Tensor(weight->dense_tensor()).copy_(stored.tensor());
    ++report.kept;
  }
  for (const format::TensorView& view : checkpoint.tensors)
    if (out.weights.find(view.name) == nullptr) report.dropped.push_back(view.name);
  if (!recipe.init->partial) {
    refuse(report, report.fresh, "lacks");
    refuse(report, report.dropped, "has besides");
  }
  out.report = std::move(report);
  return out;
}

}  // namespace tessera::train
