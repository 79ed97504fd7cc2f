#include "tessera/convert/model_card.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include <fmt/ranges.h>

#include "tessera/base/mapped_file.h"
#include "tessera/format/file_source.h"

namespace tessera::convert {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxCardBytes = size_t{1} << 20;
/// What of a card holds for the same model in another form.
constexpr std::array<std::string_view, 7> kCarried = {
    "license", "license_name", "license_link", "language", "tags", "pipeline_tag", "datasets"};

/// Lines of the YAML between the first two "---" of a card, each with those indented below it.
struct FrontMatter {
  std::vector<std::pair<std::string, std::string>> entries;  // key, its lines

  const std::string* find(std::string_view key) const {
    for (const auto& [name, lines] : entries)
      if (name == key) return &lines;
    return nullptr;
  }
};

FrontMatter front_matter_of(std::string_view card) {
  FrontMatter out;
  if (!card.starts_with("---\n") && !card.starts_with("---\r\n")) return out;
  card.remove_prefix(card.find('\n') + 1);
  while (!card.empty()) {
    const size_t end = std::min(card.find('\n'), card.size());
    std::string_view line = card.substr(0, end);
    card.remove_prefix(std::min(end + 1, card.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line == "---") return out;
    const size_t colon = line.find(':');
    const bool below = line.empty() || line[0] == ' ' || line[0] == '-' || line[0] == '#';
    if (!below && colon != std::string_view::npos)
      out.entries.emplace_back(line.substr(0, colon), std::string(line) + "\n");
    else if (!out.entries.empty())
      out.entries.back().second += std::string(line) + "\n";
  }
  return {};  // no end: not what it seemed
}

FrontMatter source_card(const Checkpoint& checkpoint) {
  std::error_code ignored;
  const fs::path card = checkpoint.folder / "README.md";
  if (checkpoint.gguf || checkpoint.folder.empty() || !fs::is_regular_file(card, ignored) ||
      fs::file_size(card, ignored) > kMaxCardBytes)
    return {};
  return front_matter_of(read_text_file(card, kMaxCardBytes));
}

/// A text as YAML takes any: JSON's strings are among its.
std::string quoted(const std::string& text) {
  return Json(format::printable(text)).dump();
}

std::string gguf_text(const Checkpoint& checkpoint, const char* key) {
  if (!checkpoint.gguf || checkpoint.gguf->metadata.find(key) == nullptr) return "";
  return std::string(checkpoint.gguf->metadata.get_string(key));
}

/// The name of what was converted: as its own files say it, else that of its folder.
std::string name_of_source(const Checkpoint& checkpoint) {
  if (const std::string name = gguf_text(checkpoint, "general.name"); !name.empty()) return name;
  const Json& config = checkpoint.foreign_config;
  if (config.is_object() && config.contains("_name_or_path") &&
      config["_name_or_path"].is_string() &&
      !config["_name_or_path"].get_ref<const std::string&>().empty())
    return config["_name_or_path"];
  const fs::path folder = fs::absolute(checkpoint.folder).lexically_normal();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

/// "org/name" of a model on a hub.
bool is_hub_name(std::string_view name) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.' || c == '/';
  };
  return std::count(name.begin(), name.end(), '/') == 1 && name.front() != '/' &&
         name.front() != '.' && name.back() != '/' && std::all_of(name.begin(), name.end(), plain);
}

std::string front_matter(const Checkpoint& checkpoint, const std::string& name) {
  const FrontMatter source = source_card(checkpoint);
  std::string out = "---\n";
  if (const std::string* base = source.find("base_model")) {
    out += *base;
  } else if (is_hub_name(name)) {
    out += fmt::format("base_model: {}\n", name);
  }
  for (const std::string_view key : kCarried)
    if (const std::string* lines = source.find(key)) out += *lines;
  for (const auto& [key, gguf] : {std::pair{"license", "general.license"},
                                  {"license_name", "general.license.name"},
                                  {"license_link", "general.license.link"}})
    if (const std::string text = gguf_text(checkpoint, gguf); !text.empty())
      out += fmt::format("{}: {}\n", key, quoted(text));
  return out + "library_name: transformers\n---\n";
}

/// "q4_1 (71 % of the numbers), q6_k (20 %)", of block types; "" without any.
std::string quantized_types(const Checkpoint& checkpoint) {
  std::map<std::string, int64_t> numbers;
  int64_t all = 0;
  for (const TensorView& tensor : checkpoint.tensors) {
    const int64_t count = format::element_count(tensor.shape);
    all += count;
    if (is_block_type(tensor.dtype)) numbers[std::string(name_of(tensor.dtype))] += count;
  }
  std::vector<std::string> types;
  for (const auto& [type, count] : numbers)
    types.push_back(
        fmt::format("{} ({} % of the numbers)", type,
                    std::llround(100.0 * static_cast<double>(count) / static_cast<double>(all))));
  return fmt::format("{}", fmt::join(types, ", "));
}

std::string error_row(const std::string& names, const WeightError& error) {
  return fmt::format("| {} | {} | {:.2e} | {:.2e} |\n", names, error.numbers, error.relative(),
                     error.largest);
}

/// The measured error by groups, and of all weights.
std::string error_table(const std::vector<GroupError>& groups, const std::string& exact) {
  std::string out = fmt::format(
      "\n## Measured error of the weights\n\nRelative to the weights of {}: root mean square of "
      "the differences by that of the weights, and the largest difference.\n\n"
      "| weights | numbers | relative error | largest difference |\n|---|---|---|---|\n",
      format::printable(exact));
  WeightError all;
  for (const GroupError& group : groups) {
    out += error_row(fmt::format("`{}`", format::printable(group.names)), group.error);
    all.add(group.error);
  }
  return out + error_row("all", all);
}

/// A tensor's name with `*` for every number between dots.
std::string without_numbers(std::string_view name) {
  std::string out;
  while (true) {
    const size_t dot = std::min(name.find('.'), name.size());
    const std::string_view piece = name.substr(0, dot);
    const bool number = !piece.empty() && piece.find_first_not_of("0123456789") == piece.npos;
    out += number ? "*" : piece;
    if (dot == name.size()) return out;
    out += '.';
    name.remove_prefix(dot + 1);
  }
}

}  // namespace

void add_error(std::vector<GroupError>& groups, std::string_view tensor, const WeightError& error) {
  if (error.numbers == 0) return;
  const std::string names = without_numbers(tensor);
  for (GroupError& group : groups)
    if (group.names == names) return group.error.add(error);
  groups.push_back({names, error});
}

std::string model_card(const Checkpoint& checkpoint, const CardFacts& facts) {
  const std::string name = name_of_source(checkpoint);
  std::string out = front_matter(checkpoint, name);
  out += fmt::format("\n# {}\n\n", format::printable(name));
  out += fmt::format("This folder was converted by tessera from {}, a model of family {}.\n\n",
                     format::printable(name), facts.family);
  out += fmt::format("- Weights: {}\n", facts.dtype);
  if (const std::string types = quantized_types(checkpoint); !types.empty())
    out += fmt::format("- Quantized where they come from: {}{}\n", types,
                       facts.reference != nullptr
                           ? ""
                           : "; the error of that was not measured (`tessera convert --reference "
                             "MODEL`, the model before quantization)");
  for (const std::string& line : facts.lost)
    out += fmt::format("- {}\n", format::printable(line, 1000));
  if (!facts.errors.empty())
    out += error_table(facts.errors,
                       facts.reference != nullptr ? name_of_source(*facts.reference) : name);
  return out;
}

}  // namespace tessera::convert
