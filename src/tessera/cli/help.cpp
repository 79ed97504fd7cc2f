#include "tessera/cli/help.h"

#include <cctype>
#include <sstream>
#include <string_view>

namespace tessera::cli {
namespace {

constexpr size_t kLeft = 30, kWidth = 100, kMostInName = 40;

/// `left`, then `text` in lines of words after the column of names.
std::string in_columns(const std::string& left, const std::string& text) {
  std::string out = "  " + left;
  if (text.empty()) return out + "\n";
  size_t at = out.size();
  if (at + 2 > kLeft) {
    out += "\n";
    at = 0;
  }
  out.append(kLeft - at, ' ');
  at = kLeft;
  std::istringstream words(text);
  bool first = true;
  for (std::string word; words >> word; first = false) {
    if (!first && at + 1 + word.size() > kWidth) {
      out += "\n" + std::string(kLeft, ' ');
      at = kLeft;
    } else if (!first) {
      out += " ";
      ++at;
    }
    out += word;
    at += word.size();
  }
  return out + "\n";
}

/// "{auto,none}", empty where the values are no choice.
std::string choices_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{');
  return begin == std::string::npos ? "" : type.substr(begin, type.find('}', begin) + 1 - begin);
}

/// The placeholder of a value: the words of a choice, else by the type. The parser writes
/// "TEXT:{auto,none}", "INT:NONNEGATIVE".
std::string value_of(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  const std::string type = option.get_type_name();
  if (!choices_of(option).empty() && choices_of(option).size() <= kMostInName)
    return " " + choices_of(option);
  const std::string kind = type.substr(0, type.find(':'));
  return kind == "INT" || kind == "UINT" ? " N" : kind == "FLOAT" ? " X" : " " + kind;
}

/// Lists may be broken into lines.
std::string spaced(const std::string& list) {
  std::string out;
  for (const char c : list) out += c == ',' ? std::string(", ") : std::string(1, c);
  return out;
}

std::string names_of(const CLI::Option& option) {
  std::string out;
  for (const std::string& name : option.get_snames()) out += "-" + name + ", ";
  if (!option.get_lnames().empty()) return out + "--" + option.get_lnames().front();
  return out.substr(0, out.size() - 2);
}

/// "(default 64; also --n-predict)"
std::string remarks_of(const CLI::Option& option, bool is_positional) {
  std::vector<std::string> remarks;
  if (const std::string choices = choices_of(option); choices.size() > kMostInName)
    remarks.push_back("one of " + spaced(choices.substr(1, choices.size() - 2)));
  if (option.get_required() && !is_positional) remarks.emplace_back("required");
  std::string standard = option.get_default_str();
  if (standard.starts_with('[') && standard.ends_with(']'))
    standard = standard.substr(1, standard.size() - 2);
  if (!standard.empty() && standard != "\"\"") remarks.push_back("default " + spaced(standard));
  const auto& names = option.get_lnames();
  if (!is_positional && names.size() > 1) {
    std::string also = "also";
    for (size_t i = 1; i < names.size(); ++i) also += (i > 1 ? ", --" : " --") + names[i];
    remarks.push_back(also);
  }
  std::string out;
  for (const std::string& remark : remarks) out += (out.empty() ? " (" : "; ") + remark;
  return out.empty() ? out : out + ")";
}

/// Examples come before the options, the rest of a footer after them.
constexpr std::string_view kExamples = "Examples:\n";
std::string examples_of(const CLI::App& app) {
  const std::string footer = app.get_footer();
  const size_t at = footer.find(kExamples);
  return at == std::string::npos ? "" : "\n" + footer.substr(at);
}
std::string notes_of(const CLI::App& app) {
  const std::string footer = app.get_footer();
  return footer.substr(0, footer.find(kExamples));
}

}  // namespace

OptionLine line_of(const CLI::Option& option, bool as_argument) {
  return {as_argument ? option.get_name(true) : names_of(option) + value_of(option),
          option.get_description() + remarks_of(option, as_argument)};
}

HelpFormatter::HelpFormatter() {
  label("Positionals", "Arguments");
  label("SUBCOMMAND", "VERB");
}

std::string HelpFormatter::make_help(const CLI::App* app,
                                     std::string name,
                                     CLI::AppFormatMode mode) const {
  std::string out = make_description(app) + make_usage(app, std::move(name)) + examples_of(*app) +
                    make_positionals(app) + make_groups(app, mode) + make_subcommands(app, mode) +
                    "\n" + notes_of(*app);
  for (size_t at; (at = out.find("\n\n\n")) != std::string::npos;) out.erase(at, 1);
  return out;
}

std::string HelpFormatter::make_option(const CLI::Option* option, bool is_positional) const {
  const OptionLine line = line_of(*option, is_positional);
  return in_columns(line.names, line.text);
}

std::string HelpFormatter::make_subcommand(const CLI::App* verb) const {
  return in_columns(verb->get_name(), verb->get_description());
}

}  // namespace tessera::cli
