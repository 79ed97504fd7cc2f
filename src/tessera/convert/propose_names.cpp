#include "tessera/convert/propose_names.h"

#include <functional>

#include "tessera/base/error.h"

namespace tessera::convert {

std::string inner_module(const std::string& pattern) {
  const size_t end = pattern.rfind('.');
  if (end == std::string::npos || end == 0) return "";
  const size_t begin = pattern.rfind('.', end - 1);
  return pattern.substr(begin == std::string::npos ? 0 : begin + 1,
                        end - (begin == std::string::npos ? 0 : begin + 1));
}

bool fused_by_head(Trial& trial, const std::string& module) {
  int by_head = 0, by_kind = 0;
  const std::function<void(const Json&)> count = [&](const Json& rules) {
    for (const Json& rule : rules) {
      if (rule.contains("rules")) count(rule["rules"]);
      const auto ours = rule.find("ours");
      const auto side = rule.find(kHf);
      if (ours == rule.end() || side == rule.end() || !ours->is_array() || ours->size() != 3 ||
          !side->is_object())
        continue;
      const Json foreign = side->value("name", Json());
      const std::string name = foreign.is_string() ? foreign.get<std::string>() : "";
      if (name.find("." + module + ".") == std::string::npos) continue;
      const std::string steps = side->value("steps", Json::array()).dump();
      ++(steps.find("reshape") == std::string::npos ? by_kind : by_head);
    }
  };
  for (const std::string& base : trial.bases())
    count(trial.families().merged(base).value("tensors", Json::array()));
  return by_head > by_kind;
}

Json shortened(const Json& names) {
  const auto stems_of = [](std::string_view base, std::string_view file) {
    // what is left of both without the words at their ends that are the same
    while (true) {
      const size_t a = base.rfind('.'), b = file.rfind('.');
      if (a == std::string_view::npos || b == std::string_view::npos ||
          base.substr(a) != file.substr(b) || base.substr(a) == ".*")
        break;
      base = base.substr(0, a);
      file = file.substr(0, b);
    }
    return std::pair(std::string(base), std::string(file));
  };
  std::map<std::string, std::map<std::string, std::vector<std::string>>> modules;
  for (const auto& [base, file] : names.items()) {
    const auto [from, to] = stems_of(base, file.get<std::string>());
    modules[from][to].push_back(base);
  }
  Json out = Json::object();
  std::set<std::string> done;
  for (const auto& [from, targets] : modules) {
    if (targets.size() != 1 || targets.begin()->second.size() < 2) continue;
    const auto& [to, members] = *targets.begin();
    if (from == members.front() || from.empty() || to.empty()) continue;
    out[from + ".*"] = to + ".*";
    done.insert(members.begin(), members.end());
  }
  for (const auto& [base, file] : names.items())
    if (!done.contains(base)) out[base] = file;
  return out;
}

}  // namespace tessera::convert
