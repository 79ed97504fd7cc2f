#include "tessera/convert/family_show.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/convert/family_json.h"

namespace tessera::convert {

using namespace family_json;

namespace {

/// A value, function or table of a family.
struct ShownValue {
  std::string name;     // of a function with its parameters
  Json given;           // expression or constant
  std::string file;     // family or fragment that gives it
  std::string meaning;  // "" = no fragment states it
};

/// The object at a path of members; empty where there is none.
Json object_at(const Json& json, const std::vector<std::string>& path) {
  const Json* at = &json;
  for (const std::string& key : path) {
    if (!at->is_object() || !at->contains(key)) return Json::object();
    at = &at->at(key);
  }
  return at->is_object() ? *at : Json::object();
}

/// An expression without its sign, or a constant.
std::string expression_text(const Json& given) {
  if (!given.is_string()) return given.dump();
  const auto& text = given.get_ref<const std::string&>();
  return text.starts_with('=') ? text.substr(1) : given.dump();
}

/// The last of the files whose object at a path has a member.
std::string giver_of(const FamilySet& families,
                     const std::vector<std::string>& files,
                     const std::vector<std::string>& path,
                     const std::string& name) {
  for (auto file = files.rbegin(); file != files.rend(); ++file)
    if (object_at(families.file(*file), path).contains(name)) return *file;
  return "";
}

// --- tensor rules -----------------------------------------------------------------------------

std::string name_text(const Json& name) {
  if (name.is_string()) return name.get<std::string>();
  if (name.is_array()) {
    std::vector<std::string> names;
    for (const Json& one : name) names.push_back(name_text(one));
    return fmt::format("{}", fmt::join(names, ", "));
  }
  if (!name.is_object()) return name.dump();
  if (name.contains("for"))
    return fmt::format("{} for {}", name_text(name.value("name", Json())), name_text(name["for"]));
  return name_text(name.value("name", Json()));
}

void add_rule(const Json& rule, const std::string& dialect, int depth, std::string& text) {
  if (!rule.is_object()) return;
  const auto line = [&](const std::string& what) {
    text += std::string(static_cast<size_t>(2 * depth), ' ') + what + "\n";
  };
  for (const char* key : {"for", "if"})
    if (const Json* control = get(rule, key)) {
      line(fmt::format("{} {}:", key, name_text(*control)));
      ++depth;
    }
  if (const Json* side = get(rule, dialect.c_str()))
    for (const char* kind : {"ours", "same_as", "copy_of", "keep", "values"})
      if (const Json* ours = get(rule, kind)) {
        const std::string as = kind == std::string("ours") ? "" : fmt::format(" ({})", kind);
        line(fmt::format("{}{} <- {}", name_text(*ours), as, name_text(*side)));
        if (const Json* steps = side->is_object() ? get(*side, "steps") : nullptr)
          for (const Json& step : *steps) line("    step " + step.dump());
      }
  if (const Json* rules = get(rule, "rules"))
    for (const Json& inner : *rules) add_rule(inner, dialect, depth, text);
}

void add_values(const char* title, const std::vector<ShownValue>& values, std::string& text) {
  if (values.empty()) return;
  text += fmt::format("\n{}:\n", title);
  for (const ShownValue& value : values)
    text += fmt::format("  {} = {}\n      {}{}{}\n", value.name, expression_text(value.given),
                        value.file, value.meaning.empty() ? "" : ": ", value.meaning);
}

std::vector<ShownValue> shown_list(const FamilySet& families,
                                   const std::string& family,
                                   const Json& merged,
                                   const std::vector<std::string>& path) {
  const std::vector<std::string> files = families.files_of(family);
  const Json meanings = object_at(merged, {"meanings"});
  std::vector<ShownValue> list;
  const Json entries = object_at(merged, path);
  for (const auto& [name, given] : entries.items())
    list.push_back(
        {name, given, giver_of(families, files, path, name), meanings.value(name, std::string())});
  return list;
}

// --- tables of the guide ----------------------------------------------------------------------

/// Text of a table's cell.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string code(const Json& given) {
  return "`" + cell(given.is_string() ? given.get<std::string>() : given.dump()) + "`";
}

/// The shortest expression of a built-in family for a value, other than the default.
std::string example_of(const FamilySet& families, const std::string& name, const Json& usual) {
  constexpr size_t kLongest = 110;
  std::string best, of;
  for (const std::string& family : families.names())
    for (const std::vector<std::string>& path :
         {std::vector<std::string>{"let"}, {"dialects", "hf", "read"}}) {
      const Json given = object_at(families.file(family), path);
      if (!given.contains(name) || given[name] == usual) continue;
      const std::string text = code(given[name]);
      if (text.size() < kLongest && (best.empty() || text.size() < best.size())) {
        best = text;
        of = family;
      }
    }
  return best.empty() ? "" : fmt::format("{}: {}", of, best);
}

}  // namespace

std::string shown_family(FamilySet& families,
                         const std::string& family,
                         const std::string& of_dialect) {
  const Json merged = families.merged(family);
  const Json& dialects = merged.at("dialects");
  const std::string dialect = !of_dialect.empty()       ? of_dialect
                              : dialects.contains("hf") ? "hf"
                                                        : dialects.begin().key();
  if (!dialects.contains(dialect)) {
    std::vector<std::string> known;
    for (const auto& [kind, of_kind] : dialects.items()) known.push_back(kind);
    fail(ErrorKind::usage, "--dialect", "family {} has no dialect \"{}\"; it has {}", family,
         dialect, fmt::join(known, ", "));
  }
  families.named(family);  // its errors
  std::vector<std::string> files = families.files_of(family);
  files.pop_back();
  std::string text = fmt::format("family {}: {}\n", family, merged.value("about", std::string()));
  if (const std::string base = merged.value("base", std::string()); !base.empty())
    text += fmt::format("base: {}\n", base);
  text += fmt::format("builds on: {}\n",
                      files.empty() ? "nothing" : fmt::format("{}", fmt::join(files, ", ")));
  for (const auto& [kind, of_kind] : dialects.items()) {
    const Json types = of_kind.value("types", Json::array());
    text += fmt::format("dialect {}: types {}, {}\n", kind, types.dump(),
                        of_kind.contains("inherited") ? "read and written as the base's"
                        : of_kind.value("read_only", Json()).is_string() ? "read only"
                                                                         : "read and written");
  }
  const std::vector<std::string> read = {"dialects", dialect, "read"};
  add_values(fmt::format("values that \"read\" of {} gives", dialect).c_str(),
             shown_list(families, family, merged, read), text);
  std::vector<ShownValue> rest = shown_list(families, family, merged, {"let"});
  const Json given = object_at(merged, read);
  std::erase_if(rest, [&](const ShownValue& value) { return given.contains(value.name); });
  add_values("other values (\"let\"), which \"let\" or \"read\" of a file may replace", rest, text);
  add_values("functions", shown_list(families, family, merged, {"functions"}), text);
  add_values("tables", shown_list(families, family, merged, {"tables"}), text);
  const auto names = [](const Json& object) {
    std::vector<std::string> list;
    for (const auto& [name, value] : object.items()) list.push_back(name);
    return fmt::format("{}", fmt::join(list, ", "));
  };
  text += fmt::format("\nvalues that writing takes from the spec (\"values\"):\n  {}\n",
                      names(object_at(merged, {"values"})));
  text += fmt::format("keys that writing gives (\"write\" of {}):\n  {}\n", dialect,
                      names(object_at(merged, {"dialects", dialect, "write"})));
  for (const auto& [key, title] :
       {std::pair("tensors", "tensor rules"),
        std::pair("base_tensors",
                  "tensor rules of the base; a rule of the file for the same "
                  "parameters takes the place of one, \"drop\" removes it")}) {
    const Json* rules = get(merged, key);
    if (rules == nullptr || rules->empty()) continue;
    text += fmt::format("\n{} (parameter <- tensor of the {} file):\n", title, dialect);
    for (const Json& rule : *rules) add_rule(rule, dialect, 1, text);
  }
  return text + "\nspec:\n" + merged.at("spec").dump(2) + "\n";
}

Json shown_family_json(const FamilySet& families, const std::string& family) {
  Json shown = families.merged(family);
  shown["files"] = families.files_of(family);
  return shown;
}

std::string values_markdown(const FamilySet& families) {
  std::string text;
  for (const std::string& fragment : families.fragments()) {
    const Json& file = families.file(fragment);
    const Json* meanings = get(file, "meanings");
    if (meanings == nullptr) continue;
    Json given = object_at(file, {"let"});
    given.update(object_at(file, {"dialects", "hf", "read"}));
    text += fmt::format(
        "{} (fragment `{}`):\n\n| name | meaning | default | example |\n|---|---|---|---|\n",
        file.value("about", std::string()), fragment);
    for (const auto& [name, meaning] : meanings->items()) {
      const bool value = given.contains(name);
      text += fmt::format("| `{}` | {} | {} | {} |\n", name, cell(meaning.get<std::string>()),
                          value ? code(given[name]) : "",
                          value ? example_of(families, name, given[name]) : "");
    }
    text += "\n";
  }
  return text;
}

std::string fragments_markdown(const FamilySet& families) {
  std::string text = "| fragment | what it adds |\n|---|---|\n";
  for (const std::string& fragment : families.fragments())
    if (const Json* about = get(families.file(fragment), "about"))
      text += fmt::format("| `{}` | {} |\n", fragment, cell(about->get<std::string>()));
  return text;
}

}  // namespace tessera::convert
