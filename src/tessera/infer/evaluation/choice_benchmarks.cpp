#include "tessera/infer/evaluation/choice_benchmarks.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/text/chat/chat_template.h"

namespace tessera::infer {

extern const char* const kChoiceBenchmarksJson;

namespace {

using spec::Json;

const Json& benchmarks_json() {
  static const Json json = spec::parse_json(kChoiceBenchmarksJson, "choice_benchmarks.json");
  return json;
}

}  // namespace

struct ChoiceBenchmark::Templates {
  std::string name;
  std::vector<std::string> needs, scores;
  std::map<std::string, text::ChatTemplate> by_key;  // of TaskExample

  /// The text of a template; empty without one.
  std::string render(const std::string& key, const Json& document, const std::string& place) const {
    const auto found = by_key.find(key);
    if (found == by_key.end()) return "";
    text::Chat chat;
    chat.variables = document;
    try {
      return found->second.render(chat).text;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal) throw;
      fail(ErrorKind::file, place, "{} of a document of {}: {}", key, name, error.what());
    }
  }
  /// The JSON value that a template writes.
  Json value(const std::string& key, const Json& document, const std::string& place) const {
    const std::string text = render(key, document, place);
    try {
      return spec::parse_json(text, key);
    } catch (const Error&) {
      fail(ErrorKind::file, place,
           "{} of a document of {} is {}; expected the values of its data set", key, name,
           Json(text.substr(0, 40)).dump());
    }
  }
};

const std::vector<std::string>& choice_benchmarks() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, value] : benchmarks_json().items()) all.push_back(name);
    return all;
  }();
  return names;
}

ChoiceBenchmark::ChoiceBenchmark(const std::string& name) {
  const Json& all = benchmarks_json();
  if (!all.contains(name))
    fail(ErrorKind::usage, "eval", "--task {}; expected one of {}", name,
         fmt::join(choice_benchmarks(), ", "));
  Json json = all[name];
  if (json.contains("same")) json = all[json["same"].get<std::string>()];
  Templates made;
  made.name = name;
  made.needs = json["needs"].get<std::vector<std::string>>();
  made.scores = json["scores"].get<std::vector<std::string>>();
  const std::string macros = json.value("macros", "");
  for (const char* key : {"description", "context", "contexts", "choices", "continuation", "gold"})
    if (json.contains(key))
      made.by_key.emplace(key, text::ChatTemplate(macros + json[key].get<std::string>(), name));
  templates_ = std::make_unique<Templates>(std::move(made));
}

ChoiceBenchmark::~ChoiceBenchmark() = default;
ChoiceBenchmark::ChoiceBenchmark(ChoiceBenchmark&&) noexcept = default;

const std::vector<std::string>& ChoiceBenchmark::scores() const {
  return templates_->scores;
}

std::pair<TaskExample, TaskKind> ChoiceBenchmark::example(const Json& document,
                                                          const std::string& place) const {
  if (!document.is_object())
    fail(ErrorKind::file, place, "found {}; expected an object", spec::kind_of(document));
  for (const std::string& key : templates_->needs)
    if (!document.contains(key) || document[key].is_null())
      fail(ErrorKind::file, place, "no \"{}\"; expected a document of {}: {}", key,
           templates_->name, fmt::join(templates_->needs, ", "));
  Json example;
  for (const auto& [key, of] : templates_->by_key) {
    const bool is_value = key == "contexts" || key == "choices" || key == "gold";
    example[key] = is_value ? templates_->value(key, document, place)
                            : Json(templates_->render(key, document, place));
  }
  return task_example(example, place);
}

}  // namespace tessera::infer
