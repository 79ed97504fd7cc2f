#include "tessera/infer/loading/expert_memory.h"

#include <algorithm>

#include "tessera/base/mapped_file.h"

namespace tessera::infer {
namespace {

constexpr std::string_view kExperts = ".experts.", kLoad = ".load";
constexpr double kFade = 0.98;  // of older choices, every call

}  // namespace

ExpertMemory::ExpertMemory(const model::Model& model, int64_t most) : most_(most) {
  for (const auto& [decl, weight] : model.weights().all()) {
    const size_t at = decl.name.rfind(kExperts);
    if (at == std::string::npos || decl.axis_of(spec::Role::expert) != 0) continue;
    const std::span<const std::byte> all{static_cast<const std::byte*>(weight->data()),
                                         static_cast<size_t>(weight->bytes())};
    if (!is_mapped(all)) continue;
    auto& experts = experts_[decl.name.substr(0, at) + ".router"];
    experts.resize(static_cast<size_t>(decl.shape[0]));
    const size_t each = all.size() / experts.size();
    for (size_t e = 0; e < experts.size(); ++e) {
      experts[e].parts.push_back(all.subspan(e * each, each));
      experts[e].bytes += static_cast<int64_t>(each);
    }
  }
  if (experts_.empty())
    fail(ErrorKind::usage, "experts",
         "no experts of this model can be read from its file on demand; expected a mixture of "
         "experts in a GGUF file, or as `tessera convert` writes it");
}

void ExpertMemory::count(const std::string& name, const Tensor& value) {
  if (!name.ends_with(kLoad)) return;
  const auto found = experts_.find(name.substr(0, name.size() - kLoad.size()));
  if (found == experts_.end()) return;
  const Tensor load = value.to(at::kCPU, at::kDouble).contiguous();
  const auto n = std::min<int64_t>(load.numel(), std::ssize(found->second));
  for (int64_t e = 0; e < n; ++e) {
    Expert& expert = found->second[static_cast<size_t>(e)];
    const double chosen = load.const_data_ptr<double>()[e];
    expert.use += chosen;
    if (chosen > 0 && !expert.held) {
      expert.held = true;
      held_ += expert.bytes;
    }
  }
}

void ExpertMemory::settle() {
  std::vector<Expert*> held;
  for (auto& [router, experts] : experts_)
    for (Expert& expert : experts) {
      expert.use *= kFade;
      if (expert.held) held.push_back(&expert);
    }
  if (held_ <= most_) return;
  std::stable_sort(held.begin(), held.end(),
                   [](const Expert* a, const Expert* b) { return a->use < b->use; });
  for (Expert* expert : held) {
    if (held_ <= most_) return;
    for (const auto& part : expert->parts) release_pages(part);
    expert->held = false;
    held_ -= expert->bytes;
  }
}

}  // namespace tessera::infer
