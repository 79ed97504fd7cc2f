#include "tessera/train/loop/init_weights.h"

#include <algorithm>

#include "tessera/convert/checkpoint.h"
#include "tessera/train/recipe/recipe.h"
#include "tessera/train/recipe/start.h"

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

void refuse(const InitReport& report,
            const std::vector<std::string>& names,
            const char* what,
            const char* remedy) {
  if (!names.empty())
    fail(ErrorKind::spec, "init.from", "{} {} {}; \"init.partial\": true {}", report.from, what,
         some_of(names), remedy);
}

}  // namespace

std::vector<std::string> InitReport::lines() const {
  std::vector<std::string> out{
      fmt::format("initialized from {}: {} parameters loaded", from, kept)};
  if (!newly_initialized.empty())
    out.push_back(fmt::format("newly initialized ({}): {}", newly_initialized.size(),
                              some_of(newly_initialized)));
  if (!unused_parameters.empty())
    out.push_back(fmt::format("unused checkpoint parameters ({}): {}", unused_parameters.size(),
                              some_of(unused_parameters)));
  if (!differs.empty())
    out.push_back(
        fmt::format("architecture differs from the checkpoint's, first at \"{}\"", differs));
  return out;
}

StartWeights start_weights(const ModelPlan& plan) {
  StartWeights out{model::Weights::initial(plan.spec, static_cast<uint64_t>(plan.train.seed))};
  if (!plan.init) return out;
  const convert::Checkpoint checkpoint = load_start(*plan.init);
  InitReport report;
  report.from = plan.init->from;
  report.differs = differing_key({{"spec", model::resolve(checkpoint.spec)}},
                                 {{"spec", model::resolve(plan.spec)}});
  for (const auto& [decl, weight] : out.weights.all()) {
    const auto found =
        std::find_if(checkpoint.tensors.begin(), checkpoint.tensors.end(),
                     [&](const format::TensorView& view) { return view.name == decl.name; });
    if (found == checkpoint.tensors.end()) {
      report.newly_initialized.push_back(decl.name);
      continue;
    }
    if (found->shape != decl.shape && plan.init->partial && is_of_head(decl.name)) {
      report.newly_initialized.push_back(decl.name);
      report.unused_parameters.push_back(decl.name);
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
    if (out.weights.find(view.name) == nullptr) report.unused_parameters.push_back(view.name);
  if (!plan.init->partial) {
    refuse(report, report.newly_initialized, "lacks parameters", "initializes them");
    refuse(report, report.unused_parameters, "has extra parameters", "drops them");
  }
  out.report = std::move(report);
  out.origin = convert::origin_metadata(checkpoint);
  return out;
}

}  // namespace tessera::train
