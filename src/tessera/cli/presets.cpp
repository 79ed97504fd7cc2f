#include "tessera/cli/presets.h"

#include <fmt/format.h>

#include "tessera/spec/json.h"

namespace tessera::cli {

extern const char* const kPresetsJson;

namespace {

Preset preset_of(const spec::Json& json) {
  Preset out;
  out.spec = json.at("spec").get<std::string>();
  out.family = json.value("family", "");
  out.parameters = json.at("parameters").get<int64_t>();
  out.active = json.value("active", out.parameters);
  out.note = json.value("note", "");
  if (const auto survey = json.find("survey"); survey != json.end()) {
    out.model = survey->at("model").get<std::string>();
    out.year = survey->at("year").get<int64_t>();
    out.survey_note = survey->value("note", "");
  }
  return out;
}

}  // namespace

const std::vector<Preset>& presets() {
  static const std::vector<Preset> list = [] {
    std::vector<Preset> out;
    for (const spec::Json& json : spec::parse_json(kPresetsJson, "presets.json"))
      out.push_back(preset_of(json));
    return out;
  }();
  return list;
}

std::string short_count(int64_t n) {
  constexpr std::string_view kUnits = "KMBT";
  double value = static_cast<double>(n);
  size_t unit = 0;  // 0 = none
  while (value >= 999.5 && unit < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  const int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f}{}", value, decimals, unit == 0 ? "" : kUnits.substr(unit - 1, 1));
}

}  // namespace tessera::cli
