#include "tessera/hub/gguf_files.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <regex>

namespace tessera::hub {
namespace {

std::string upper(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return out;
}

std::string base_name(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

struct PartName {
  std::string stem;  // the path without number and extension
  size_t number = 1, of = 1;
};

PartName part_name(const std::string& path) {
  static const std::regex numbered("^(.+)-([0-9]{5})-of-([0-9]{5})$");
  const std::string stem = path.substr(0, path.size() - std::string_view(".gguf").size());
  std::smatch found;
  if (!std::regex_match(stem, found, numbered)) return {stem};
  return {found[1], std::stoul(found[2]), std::stoul(found[3])};
}

/// The last word of the stem, else of its folder, that is a storage type of GGUF.
std::string quantization_of(const std::string& stem) {
  static const std::regex type(
      "(^|.*[-._])((UD-)?(I?Q[1-9][A-Z0-9_]*|TQ[1-9]_[0-9]|MXFP[0-9A-Z_]*|NVFP4|BF16|F16|FP16|F32|"
      "FP32))$");
  const size_t slash = stem.rfind('/');
  std::vector<std::string> names{base_name(stem)};
  if (slash != stem.npos) names.push_back(base_name(stem.substr(0, slash)));
  for (const std::string& name : names) {
    std::smatch found;
    const std::string text = upper(name);
    if (!std::regex_match(text, found, type)) continue;
    // "UD-" belongs to what follows it, and the greedy start has taken it
    const std::string before = found[1], word = found[2];
    return before == "UD-" || before.ends_with("-UD-") ? "UD-" + word : word;
  }
  return "";
}

bool ends_in(const std::string& stem, const std::string& word) {
  const std::string text = upper(stem);
  if (!text.ends_with(word)) return false;
  const size_t before = text.size() - word.size();
  return before == 0 || std::string_view("-._/").find(text[before - 1]) != std::string_view::npos;
}

}  // namespace

std::vector<GgufModel> gguf_models(const std::vector<std::string>& paths) {
  std::map<std::pair<std::string, size_t>, std::map<size_t, std::string>> parts;
  for (const std::string& path : paths) {
    const std::string name = upper(base_name(path));
    if (!name.ends_with(".GGUF") || name.starts_with("MMPROJ") || name.find("IMATRIX") != name.npos)
      continue;
    const PartName part = part_name(path);
    parts[{part.stem, part.of}][part.number] = path;
  }
  std::vector<GgufModel> models;
  for (const auto& [key, files] : parts) {
    GgufModel model;
    model.expected_parts = key.second;
    model.quantization = quantization_of(key.first);
    for (const auto& [number, path] : files) model.parts.push_back(path);
    models.push_back(std::move(model));
  }
  return models;
}

std::vector<GgufModel> of_quantization(const std::vector<GgufModel>& models,
                                       std::string_view quantization) {
  const std::string word = upper(quantization);
  std::vector<GgufModel> exact, others;
  for (const GgufModel& model : models) {
    const std::string stem = part_name(model.parts.front()).stem;
    const size_t slash = stem.rfind('/');
    if (model.quantization == word)
      exact.push_back(model);
    else if (ends_in(stem, word) || (slash != stem.npos && ends_in(stem.substr(0, slash), word)))
      others.push_back(model);
  }
  return exact.empty() ? others : exact;
}

std::string choices(const std::string& repo, const std::vector<GgufModel>& models) {
  std::string out;
  for (const GgufModel& model : models) {
    const bool only = std::count_if(models.begin(), models.end(), [&](const GgufModel& other) {
                        return other.choice() == model.choice();
                      }) == 1;
    out += (out.empty() ? "" : ", ") + repo + ":" + (only ? model.choice() : model.parts.front());
  }
  return out;
}

}  // namespace tessera::hub
