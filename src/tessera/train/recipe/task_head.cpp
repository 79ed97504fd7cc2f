#include "tessera/train/recipe/task_head.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/base/error.h"

namespace tessera::train {
namespace {

using spec::Json;

std::string type_of(const Json& part) {
  if (part.is_string()) return part.get<std::string>();
  return part.is_object() && part.contains("type") && part["type"].is_string()
             ? part["type"].get<std::string>()
             : std::string();
}

/// The heads of a spec as objects.
std::vector<Json> heads_of(const Json& spec) {
  std::vector<Json> out;
  const auto add = [&](const Json& head) {
    if (!head.is_null()) out.push_back(head.is_string() ? Json{{"type", head}} : head);
  };
  if (spec.contains("heads") && spec["heads"].is_array())
    for (const Json& head : spec["heads"]) add(head);
  else if (spec.contains("head"))
    add(spec["head"]);
  return out;
}

/// A list of names at a key; empty if there is none.
std::vector<std::string> names_at(const Json& object, const char* key) {
  std::vector<std::string> out;
  const Json list = object.is_object() ? object.value(key, Json()) : Json();
  if (list.is_array())
    for (const Json& name : list)
      if (name.is_string()) out.push_back(name.get<std::string>());
  return out;
}

/// The head that computes the objective's outputs.
Json wanted_head(const std::string& type, const std::vector<std::string>& labels) {
  if (type == "question_answering") return {{"type", "span"}};
  Json head = {{"type", "classifier"}};
  head["n_labels"] = type == "regression" ? 1 : std::ssize(labels);
  if (type == "token_classification") head["of"] = "tokens";
  if (!labels.empty()) head["labels"] = labels;
  return head;
}

/// True if a head of the model fits; equal labels must be in the same order.
bool fits(const Json& head, const Json& wanted, const std::vector<std::string>& labels) {
  if (type_of(head) != type_of(wanted)) return false;
  if (type_of(head) == "span") return true;
  if (head.value("of", Json("pooled")) != wanted.value("of", Json("pooled"))) return false;
  const std::vector<std::string> own = names_at(head, "labels");
  if (labels.empty()) return wanted["n_labels"] != Json(1) || head["n_labels"] == Json(1);
  if (head.value("n_labels", Json()) != wanted["n_labels"]) return false;
  if (own.empty() || own == labels) return true;
  std::vector<std::string> a = own, b = labels;
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  if (a == b)
    fail(ErrorKind::spec, "objective.labels",
         "another order than the model's, whose classes are {}; expected that one",
         Json(own).dump());
  return false;
}

/// The default pooling.
Json usual_pooler(const Json& spec) {
  if (spec.value("arch", Json()) == Json("encoder")) return {{"type", "pooler"}};
  return {{"type", "pooler"}, {"of", "last"}, {"dense", false}, {"act", "identity"}};
}

std::string described(const Json& head) {
  if (type_of(head) == "span") return "answer span (start, end)";
  if (!head.contains("labels")) return fmt::format("{} outputs per text", head["n_labels"].dump());
  return fmt::format("{} classes", head["labels"].size());
}

}  // namespace

TaskHead with_task_head(Json spec, const Json& objective, bool replace) {
  TaskHead out{std::move(spec)};
  if (!out.spec.is_object() || !objective.is_object()) return out;
  const std::string type = type_of(objective);
  const std::vector<std::string> labels = names_at(objective, "labels");
  Json logits, pooler;
  for (const Json& head : heads_of(out.spec)) (type_of(head) == "pooler" ? pooler : logits) = head;

  // the head: the model's own with the given names, or a new one
  Json head = wanted_head(type, labels);
  const bool own = !logits.is_null() && fits(logits, head, labels);
  if (!own && !replace) return out;
  if (own) {
    head = logits;
    if (!labels.empty()) head["labels"] = labels;
  } else if (head.value("n_labels", Json(1)) == Json(0)) {
    fail(ErrorKind::spec, "objective.labels",
         "missing, and the model has no head with classes; expected their names, in the order of "
         "their numbers");
  }
  Json list = Json::array({head});
  std::vector<std::string> changes;
  if (!own)
    changes.push_back(logits.is_null() ? fmt::format("new head: {}", described(head))
                                       : fmt::format("head \"{}\" replaced by a new one: {}",
                                                     type_of(logits), described(head)));

  // pooling; a complete spec keeps its own
  Json kept = pooler;
  if (replace && (type == "classification" || type == "regression")) {
    const Json pool = objective.value("pool", Json());
    if (pool.is_string())
      kept = {{"type", "pooler"}, {"of", pool}, {"dense", false}, {"act", "identity"}};
    else if (pooler.is_null())
      kept = usual_pooler(out.spec);
  } else if (replace) {
    kept = nullptr;
  }
  if (!kept.is_null()) list.push_back(kept);
  if (kept != pooler)
    changes.push_back(kept.is_null() ? "pooler removed" : fmt::format("pooling: {}", kept.dump()));
  out.note = fmt::format("{}", fmt::join(changes, "; "));
  out.spec.erase("head");
  out.spec["heads"] = std::move(list);
  return out;
}

}  // namespace tessera::train
