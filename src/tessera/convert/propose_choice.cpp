#include "tessera/convert/propose_choice.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/convert/expr_node.h"
#include "tessera/convert/tensor_roles.h"

namespace tessera::convert {
namespace {

constexpr double kEqual = 0.75;  // costs of bases that fit equally differ by less
constexpr size_t kTold = 3;      // of them whose differences are reported

/// The members of a resolved spec by their paths, those of all layers under one.
std::map<std::string, std::set<std::string>> members_of(const model::ModelSpec& spec) {
  std::map<std::string, std::set<std::string>> members;
  const Json flat = model::resolve(spec).flatten();
  for (const auto& [path, value] : flat.items()) {
    std::string dotted = path.substr(1);
    std::replace(dotted.begin(), dotted.end(), '/', '.');
    members[numbered(dotted).pattern].insert(shown(value));
  }
  return members;
}

}  // namespace

void prefer_typical(std::vector<Draft>& drafts) {
  using Members = std::map<std::string, std::set<std::string>>;
  std::vector<Members> specs;
  for (const Draft& draft : drafts) {
    if (!draft.dry.complete() || draft.cost > drafts.front().cost + kEqual) break;
    specs.push_back(members_of(*draft.dry.spec));
  }
  if (specs.size() < 2) return;
  std::map<std::string, std::map<std::set<std::string>, size_t>> votes;
  for (const Members& spec : specs)
    for (const auto& [path, values] : spec) ++votes[path][values];
  std::vector<size_t> common(specs.size(), 0);
  for (size_t i = 0; i < specs.size(); ++i)
    for (const auto& [path, of_path] : votes) {
      size_t with = specs.size();
      for (const auto& [values, count] : of_path) with -= count;  // those without the member
      if (const auto own = specs[i].find(path); own != specs[i].end())
        with = of_path.at(own->second);
      common[i] += with;
    }
  // of equals the plainer one
  size_t best = 0;
  for (size_t i = 1; i < specs.size(); ++i)
    if (common[i] > common[best] ||
        (common[i] == common[best] && specs[i].size() < specs[best].size()))
      best = i;
  const auto differences = [&](size_t other) {
    std::string text;
    constexpr size_t kMembers = 4;
    size_t count = 0;
    for (const auto& [path, values] : specs[other]) {
      const auto own = specs[best].find(path);
      if (own != specs[best].end() && own->second == values) continue;
      if (++count > kMembers) continue;
      text += fmt::format("{}{} = {}", count == 1 ? "" : ", ", path, fmt::join(values, " or "));
    }
    for (const auto& [path, values] : specs[best])
      if (!specs[other].contains(path) && ++count <= kMembers)
        text += fmt::format("{}no {}", count == 1 ? "" : ", ", path);
    return count <= kMembers ? text : fmt::format("{} and {} more", text, count - kMembers);
  };
  std::set<std::string> told;
  for (size_t i = 0; i < specs.size() && told.size() < kTold; ++i)
    if (const std::string what = differences(i); !what.empty() && told.insert(what).second)
      drafts[best].unsure.push_back(
          fmt::format("family {} fits equally; its spec has {}", drafts[i].base, what));
  std::rotate(drafts.begin(), drafts.begin() + static_cast<std::ptrdiff_t>(best),
              drafts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
}

}  // namespace tessera::convert
