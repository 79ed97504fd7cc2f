#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/gguf_model.h"
#include "tessera/convert/mapping.h"
#include "tessera/format/file_source.h"
#include "tessera/spec/json_difference.h"

namespace tessera::convert {
namespace {

Json resolved(const Json& spec_json) {
  return model::resolve(model::read_model_spec(spec_json));
}

/// A spec's heads.
std::vector<Json> heads_of(const Json& spec_json) {
  std::vector<Json> heads;
  const Json one = spec_json.value("head", Json()), several = spec_json.value("heads", Json());
  if (one.is_object()) heads.push_back(one);
  if (several.is_array()) heads.insert(heads.end(), several.begin(), several.end());
  return heads;
}

/// "masked_lm" or "classifier of tokens".
std::string name_of_head(const Json& head) {
  const Json of = head.value("of", Json());
  return head.at("type").get<std::string>() +
         (of.is_string() ? " of " + of.get<std::string>() : "");
}

/// The first head of a kind that another spec lacks; "" without one.
std::string missing_head(const Json& wanted, const Json& said) {
  std::vector<Json> there = heads_of(said);
  for (const Json& head : heads_of(wanted)) {
    const auto found = std::find_if(there.begin(), there.end(), [&](const Json& other) {
      return other.value("type", Json()) == head.value("type", Json());
    });
    if (found == there.end()) return name_of_head(head);
    there.erase(found);
  }
  return "";
}

/// What has no place for a head: "GGUF files have", and what keeps it.
struct NoPlace {
  const char *where, *remedy;
};

/// Throws Error(spec) "[family] `what` at layers[3].mixer.n_heads: 4; 8" unless the specs are one;
/// names a head that is missing in `said`.
void expect_same(const std::string& family,
                 const Json& wanted,
                 const Json& said,
                 const std::string& what,
                 const NoPlace& no_place) {
  const auto found = spec::first_difference(wanted, said);
  if (!found) return;
  std::string head = found->path.starts_with("head") ? missing_head(wanted, said) : "";
  if (head.empty() && found->path == "head" && !found->after && found->before->is_object())
    head = name_of_head(*found->before);
  if (!head.empty())
    fail(ErrorKind::spec, family, "{} no place for the head \"{}\"{}", no_place.where, head,
         no_place.remedy);
  const auto text = [](const std::optional<Json>& value) {
    return shown(value.value_or(absent()));
  };
  fail(ErrorKind::spec, family, "{} at {}: {}; {}", what, found->path, text(found->before),
       text(found->after));
}

/// Members whose keys have dots as members of members, without those that are null.
Json nested(const Json& flat) {
  Json out = Json::object();
  for (const auto& [key, value] : flat.items()) {
    if (value.is_null()) continue;
    Json* at = &out;
    size_t begin = 0;
    for (size_t dot; (dot = key.find('.', begin)) != std::string::npos; begin = dot + 1)
      at = &(*at)[key.substr(begin, dot - begin)];
    Json& member = (*at)[key.substr(begin)];
    member = value.is_object() ? nested(value) : value;
  }
  return out;
}

/// Every member of an object that is none itself, by its path.
void for_each_member(const Json& json,
                     const std::string& prefix,
                     const std::function<void(const std::string& path, const Json& value)>& body) {
  for (const auto& [key, value] : json.items())
    if (value.is_object())
      for_each_member(value, prefix + key + ".", body);
    else if (key.find_first_of("/~") == std::string::npos)
      body(prefix + key, value);
}

/// What configs say of the labels of one task.
const std::vector<std::string> kOfLabels = {"label2id", "*num_labels", "problem_type",
                                            "finetuning_task"};

class Exporter {
 public:
  Exporter(const Family& family,
           std::string_view dialect,
           const Checkpoint& checkpoint,
           FamilySet* families)
      : family_(family),
        kind_(dialect),
        dialect_(family.dialect(dialect)),
        checkpoint_(checkpoint),
        families_(families) {
    if (!dialect_.write)
      fail(ErrorKind::usage, family.name, "cannot be written as {}: {}", kind_, dialect_.read_only);
    same_origin_ = checkpoint.foreign_dialect == kind_ && checkpoint.family == family.name;
    fill(own_, false);
    fill(canonical_, true);
  }

  Exported run(bool float32) {
    check_expressible();
    Exported out;
    out.config = written_config();
    check_written_values();
    float32_ = float32;
    for (const TensorRule& rule : family_.rules)
      walk(rule, nullptr, [&](const TensorRule& one, const ForeignSide& side, const Local* locals) {
        write_rule(one, side, locals, out);
      });
    check_read_back(out);
    carry_over(out);
    if (dialect_.remark != nullptr)
      if (const Json remark = dialect_.remark->evaluate(own_); remark.is_string())
        out.remark = remark.get<std::string>();
    return out;
  }

  void each_rule(const std::function<void(const BoundRule& rule)>& body) {
    check_expressible();
    const auto visit = [&](const TensorRule& rule, const ForeignSide& side, const Local* locals) {
      if (rule.kind != TensorRule::Kind::convert) return;
      body({foreign_names(side, locals), our_names(rule, locals), spellings(side, locals),
            side.steps,
            [&](std::vector<TensorView>& tensors) { side.steps.apply(tensors, own_, locals); },
            [&](std::vector<TensorView>& tensors) { side.steps.invert(tensors, own_, locals); }});
    };
    for (const TensorRule& rule : family_.rules) walk(rule, nullptr, visit);
  }

  std::vector<BoundAlias> aliases() {
    std::vector<BoundAlias> out;
    const auto visit = [&](const TensorRule& rule, const ForeignSide& side, const Local* locals) {
      if (rule.kind != TensorRule::Kind::same_as) return;
      const std::string ours = rule.ours.front().spellings.front().expand(own_, locals);
      for (std::vector<std::string>& names : spellings(side, locals))
        out.push_back({std::move(names), ours});
    };
    for (const TensorRule& rule : family_.rules) walk(rule, nullptr, visit);
    return out;
  }

  Json spec_in_form() {
    check_expressible();
    return resolved(family_.spec->evaluate(canonical_));
  }

  Json value(std::string_view name) {
    const Json* found = own_.find(name);
    return found == nullptr ? Json() : *found;
  }

  /// Throws Error(spec) unless the values say the whole spec.
  void check_expressible() {
    expect_same(family_.name, checkpoint_.spec_json, resolved(family_.spec->evaluate(own_)),
                "this family cannot express the architecture; its nearest differs",
                {"this family has", ""});
  }

  /// Entries that the family's own file lacks for writing, a line each with its place.
  std::vector<std::string> lacking(const std::string& why) {
    const Json& own = families_->file(family_.name);
    const Json merged = families_->merged(family_.name);
    const auto member = [](const Json& json, std::initializer_list<const char*> path) {
      const Json* at = &json;
      for (const char* key : path) {
        if (!at->is_object() || !at->contains(key)) return Json(Json::object());
        at = &at->at(key);
      }
      return *at;
    };
    const Json read = member(own, {"dialects", kind_.c_str(), "read"});
    const Json written = member(merged, {"dialects", kind_.c_str(), "write"});
    std::vector<std::string> lines;
    const auto add = [&](const std::string& entry, const std::string& what) {
      const Error error(ErrorKind::spec, fmt::format("{}.{}.{}", family_.name, kind_, entry), what);
      lines.emplace_back(families_->located(error, family_.name).what());
    };
    for (const auto& [name, body] : dialect_.read) {
      if (!read.contains(name)) continue;
      const bool asked = own_.evaluated(name) || canonical_.evaluated(name) ||
                         why.find(fmt::format("\"{}\"", name)) != std::string::npos;
      if (asked && !is_given(name))
        add("read." + name,
            "writing needs the same value from the spec, as \"values\": "
            "{\"" +
                name + "\": \"=spec...\"}");
      std::set<std::string> paths;
      body->collect_paths("config", paths);
      for (const std::string& path : paths)
        if (!written.contains(path.substr(0, path.find('.'))))
          add("read." + name, fmt::format("writing needs an entry \"{}\" in \"write\"", path));
    }
    for (const auto& [key, value] : written.items()) {
      const auto below = dialect_.claims.lower_bound(key + ".");
      const bool claimed = dialect_.claims.contains(key) ||
                           (below != dialect_.claims.end() && below->starts_with(key + "."));
      if (!claimed && value != "=absent" && !dialect_.ignores_key(key) &&
          !matches_any(key, families_->metadata_keys(kind_)))
        add("write", fmt::format("writes \"{0}\", which no entry of \"read\" reads; leave it out "
                                 "by \"write\": {{\"{0}\": \"=absent\"}}",
                                 key));
    }
    return lines;
  }

  /// Throws as run() does, by the spec alone.
  void check_by_names() {
    check_expressible();
    Exported out;
    out.config = written_config();
    check_written_values();
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const spec::ParamDecl& decl : model::parameters(checkpoint_.spec))
      shapes[decl.name] = decl.shape;
    for (const TensorRule& rule : family_.rules)
      walk(rule, nullptr, [&](const TensorRule& one, const ForeignSide& side, const Local* locals) {
        if (one.kind != TensorRule::Kind::convert) return;
        const std::vector<std::string> ours = our_names(one, locals);
        for (const std::string& name : foreign_names(side, locals))
          out.tensors.push_back({name, DType::f32, shapes[ours.front()], {}});
      });
    check_read_back(out);
  }

 private:
  Json written_config() {
    Json config = dialect_.write->evaluate(canonical_);
    if (kind_ != "gguf") return dialect_.file_config(std::move(config));
    config = nested(config);
    // a family of several writes which
    if (!config.contains("architecture")) config["architecture"] = dialect_.types.front();
    return dialect_.file_config(std::move(config));
  }

  /// What the family's own file reads, and neither the spec nor "values" gives, is not known when
  /// writing: a default of "let" would be written in its place.
  void check_written_values() const {
    if (family_.base.empty()) return;
    const Json::json_pointer place("/dialects/" + kind_ + "/read");
    const Json& own = families_->file(family_.name);
    if (!own.contains(place)) return;
    for (const auto& [name, body] : own.at(place).items())
      if (canonical_.evaluated(name) && !own_.evaluated(name) && !is_given(name))
        fail(ErrorKind::spec, fmt::format("{}.{}.read.{}", family_.name, kind_, name),
             "\"write\" has this value, and nothing gives it when writing; expected it from the "
             "spec, as \"values\": {{\"{}\": \"=spec...\"}}",
             name);
  }

  /// Whether a value has a source when writing.
  bool is_given(const std::string& name) const {
    const auto gives = [&](const NamedTemplates& list) {
      return std::any_of(list.begin(), list.end(),
                         [&](const auto& entry) { return entry.first == name; });
    };
    return gives(family_.values) || gives(dialect_.written) || gives(dialect_.fixed);
  }

  /// `canonical`: in the form that the dialect has, where it fixes one.
  void fill(Environment& env, bool canonical) {
    for (const auto& [name, table] : family_.tables) env.constant(name, table);
    for (const auto& [name, function] : family_.functions) env.function(name, function);
    for (const auto& [name, body] : family_.let) env.lazy(name, body);
    for (const auto& [name, body] : family_.values) env.lazy(name, body);
    for (const auto& [name, body] : dialect_.written) env.lazy(name, body);
    if (canonical)
      for (const auto& [name, body] : dialect_.fixed) env.lazy(name, body);
    env.constant("spec", spec_view(checkpoint_.spec_json));
    Json origin =
        checkpoint_.foreign_config.is_object() ? checkpoint_.foreign_config : Json::object();
    if (same_origin_) origin = dialect_.base_config(std::move(origin), family_.name);
    env.constant("origin", std::move(origin));
    env.constant("origin_dialect", checkpoint_.foreign_dialect);
  }

  /// What a reader makes of the written file must be the spec that went out.
  void check_read_back(const Exported& out) {
    const format::TensorFile tensors(kind_, "the tensors to be written", out.tensors);
    const Foreign foreign{kind_, out.config, &tensors, "the config to be written"};
    // a dialect that is the base's alone has the base's readers
    const Family& reader = dialect_.inherited ? families_->named(family_.base) : family_;
    Importer importer(reader, foreign, *families_, {.strict = true});
    const Json wanted = resolved(family_.spec->evaluate(canonical_));
    const std::string what =
        fmt::format("this family's {} config cannot express the architecture; read back it", kind_);
    Json said;
    try {
      said = resolved(importer.spec_json());
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::spec)
        fail(ErrorKind::spec, family_.name, "{} is no model: {}", what, error.what());
      if (family_.base.empty()) throw;
      throw Error(error.kind(), fmt::format("{}.{}.write", family_.name, kind_), error.what());
    }
    expect_same(
        family_.name, wanted, said, what + " differs",
        kind_ == "gguf"
            ? NoPlace{"GGUF files of this family have", "; --to hf and --to tessera keep it"}
            : NoPlace{"its Hugging Face folders have", "; --to tessera keeps it"});
  }

  /// Whether the config that the model came with still describes it as one of a class, except for
  /// labels and the rows of its vocabulary.
  bool still_says(const Exported& out, const Json& architectures) {
    Json config = checkpoint_.foreign_config;
    const auto of_labels = [](const std::string& key) {
      return key == "architectures" || key == "vocab_size" || key == "id2label" ||
             matches_any(key, kOfLabels);
    };
    for (auto at = config.begin(); at != config.end();)
      at = of_labels(at.key()) ? config.erase(at) : std::next(at);
    for (const auto& [key, value] : out.config.items())
      if (of_labels(key)) config[key] = value;
    if (!architectures.is_null()) config["architectures"] = architectures;
    const format::TensorFile tensors(kind_, "the tensors to be written", out.tensors);
    const Foreign foreign{kind_, config, &tensors, "the config that was read"};
    try {
      Importer importer(family_, foreign, *families_, {});
      return resolved(importer.spec_json()) == resolved(family_.spec->evaluate(canonical_));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal) throw;
      return false;
    }
  }

  /// The class that the config came with, where the family's own file names none: what is written
  /// by the base is the base's.
  void carry_class(const Json& origin, Exported& out) {
    if (family_.base.empty() || !origin.contains("architectures") ||
        !out.config.contains("architectures"))
      return;
    const Json::json_pointer written("/dialects/" + kind_ + "/write/architectures");
    if (families_->file(family_.name).contains(written)) return;
    const Json& own = origin.at("architectures");
    if (own != out.config["architectures"] && still_says(out, own))
      out.config["architectures"] = own;
  }

  /// Keys without mathematics come along; of labels only where the class and its labels are those
  /// that the config came with. Keys that the family ignores do where the config still matches the
  /// model, since some repeat sizes; objects among them are for parts that the model is without.
  void carry_over(Exported& out) {
    Json& config = out.config;
    if (!same_origin_ || !checkpoint_.foreign_config.is_object()) return;
    const Json& origin = checkpoint_.foreign_config;
    if (kind_ == "hf") carry_class(origin, out);
    const auto same = [&](const char* key) {
      return config.value(key, Json()) == origin.value(key, Json());
    };
    const bool labels = same("architectures") && same("id2label");
    for (const auto& [key, value] : checkpoint_.foreign_config.items())
      if (!config.contains(key) && !dialect_.claims.contains(key) &&
          matches_any(key, families_->metadata_keys(kind_)) &&
          (labels || !matches_any(key, kOfLabels)))
        config[key] = value;
    if (kind_ != "hf") return;
    const bool still = still_says(out, config.value("architectures", Json()));
    carry_renamed(origin, still, config);
    if (!still) return;
    for_each_member(origin, "", [&](const std::string& path, const Json& value) {
      if (!dialect_.ignores_key(path) || dialect_.claims.contains(path)) return;
      std::string members = "/" + path;
      std::replace(members.begin(), members.end(), '.', '/');
      const Json::json_pointer at(members), parent = at.parent_pointer();
      if (config.contains(parent) && config[parent].is_object() && !config.contains(at))
        config[at] = value;
    });
  }

  /// The names that the file has for keys of its base, which writes some of them by other names.
  void carry_renamed(const Json& origin, bool still_says, Json& config) const {
    for (const auto& [base, file] : dialect_.keys) {
      std::string members = "/" + file;
      std::replace(members.begin(), members.end(), '.', '/');
      const Json::json_pointer at(members);
      if (!origin.contains(at) || config.contains(at)) continue;
      if (!still_says)
        fail(ErrorKind::spec, fmt::format("{}.{}.keys.{}", family_.name, kind_, base),
             "\"{}\" of the config that was read is not written: the base writes this value by "
             "another name; expected that name instead of \"{}\"",
             file, base);
      if (!at.parent_pointer().empty() && !config.contains(at.parent_pointer()))
        config[at.parent_pointer()] = Json::object();
      config[at] = origin.at(at);
    }
  }

  const TensorView& ours(const std::string& name) {
    if (by_name_.empty())
      for (const TensorView& tensor : checkpoint_.tensors) by_name_.emplace(tensor.name, &tensor);
    const auto found = by_name_.find(name);
    if (found == by_name_.end())
      fail(ErrorKind::spec, family_.name, "a rule speaks of {}, which the model lacks", name);
    return *found->second;
  }

  TensorView as_written(const TensorView& tensor) const {
    if (tensor.dtype == DType::u8) return tensor;  // codes
    if (float32_) return as_float32(tensor);
    return kind_ == "gguf" && has_gguf_form(tensor) ? tensor : as_plain_float(tensor);
  }

  using OnRule = std::function<void(const TensorRule&, const ForeignSide&, const Local*)>;

  /// Every rule that holds for the model and has a place in the dialect.
  void walk(const TensorRule& rule, const Local* locals, const OnRule& body) {
    if (rule.loop) {
      TensorRule once = rule;
      once.loop.reset();
      rule.loop->run(own_, locals, [&](const Local* inner) { walk(once, inner, body); });
      return;
    }
    if (rule.condition && !rule.condition->test(own_, locals)) return;
    for (const TensorRule& child : rule.rules) walk(child, locals, body);
    const auto side = rule.sides.find(kind_);
    if (side == rule.sides.end()) return;
    const std::vector<std::string> ours = our_names(rule, locals);
    const bool converts = rule.kind == TensorRule::Kind::convert;
    if (rule.inherited && !ours.empty() &&
        !family_.base_gives(ours, converts ? given_ : std::set<std::string, std::less<>>()))
      return;
    if (converts && !rule.inherited) given_.insert(ours.begin(), ours.end());
    body(rule, side->second, locals);
  }

  std::vector<std::string> our_names(const TensorRule& rule, const Local* locals) {
    std::vector<std::string> names;
    for (const RuleName& name : rule.ours)
      name.each(own_, locals, [&](const Local* inner) {
        names.push_back(name.spellings.front().expand(own_, inner));
      });
    return names;
  }

  /// Every foreign name of a rule, the written spelling of each first.
  std::vector<std::vector<std::string>> spellings(const ForeignSide& side, const Local* locals) {
    std::vector<std::vector<std::string>> names;
    for (const RuleName& name : side.names)
      name.each(own_, locals, [&](const Local* inner) {
        names.emplace_back();
        for (const NamePattern& spelling : name.spellings)
          names.back().push_back(dialect_.names.to_file(spelling.expand(own_, inner)));
      });
    return names;
  }

  std::vector<std::string> foreign_names(const ForeignSide& side, const Local* locals) {
    std::vector<std::string> names;
    for (std::vector<std::string>& one : spellings(side, locals))
      names.push_back(std::move(one.front()));
    return names;
  }

  void write_rule(const TensorRule& rule,
                  const ForeignSide& side,
                  const Local* locals,
                  Exported& out) {
    if (rule.kind == TensorRule::Kind::keep) return write_kept(rule, side, locals, out);
    if (rule.kind == TensorRule::Kind::values) return write_values(rule, side, locals, out);
    if (rule.kind != TensorRule::Kind::convert && rule.kind != TensorRule::Kind::copy_of) return;
    std::vector<TensorView> tensors;
    for (const std::string& name : our_names(rule, locals))
      tensors.push_back(as_written(ours(name)));
    side.steps.invert(tensors, own_, locals);
    const std::vector<std::string> names = foreign_names(side, locals);
    if (tensors.size() != names.size())
      fail(ErrorKind::spec, family_.name, "{} tensors for {} names", tensors.size(), names.size());
    for (size_t i = 0; i < tensors.size(); ++i) {
      tensors[i].name = names[i];
      out.tensors.push_back(as_written(tensors[i]));
    }
  }

  void write_values(const TensorRule& rule,
                    const ForeignSide& side,
                    const Local* locals,
                    Exported& out) {
    const Json numbers = rule.values->evaluate(own_, locals);
    auto values = std::make_shared<std::vector<float>>();
    for (const Json& number : numbers) {
      if (!number.is_number())
        fail(ErrorKind::spec, family_.name, "{} are no numbers", shown(numbers));
      values->push_back(static_cast<float>(number.get<double>()));
    }
    const auto bytes = std::as_bytes(std::span(*values));
    out.tensors.push_back(
        {foreign_names(side, locals).front(), DType::f32, {std::ssize(*values)}, bytes, values});
  }

  void write_kept(const TensorRule& rule,
                  const ForeignSide& side,
                  const Local* locals,
                  Exported& out) {
    const std::string name = rule.ours.front().spellings.front().expand(own_, locals);
    for (const TensorView& tensor : checkpoint_.kept) {
      if (tensor.name != name) continue;
      out.tensors.push_back(as_written(tensor));
      out.tensors.back().name = foreign_names(side, locals).front();
    }
  }

  const Family& family_;
  std::string kind_;
  const Dialect& dialect_;
  const Checkpoint& checkpoint_;
  FamilySet* families_;  // null where nothing is read back
  bool same_origin_ = false;
  bool float32_ = false;
  std::map<std::string, const TensorView*, std::less<>> by_name_;
  std::set<std::string, std::less<>> given_;  // ours, by rules of the family itself
  Environment own_, canonical_;
};

}  // namespace

std::string why_not_exportable(const Family& family,
                               std::string_view dialect,
                               const Checkpoint& checkpoint,
                               FamilySet& families,
                               std::vector<std::string>* lacking) {
  std::optional<Exporter> exporter;
  try {
    exporter.emplace(family, dialect, checkpoint, &families);
    exporter->check_by_names();
    return "";
  } catch (const Error& error) {
    // a family speaks of what the spec lacks, or has no files to write
    if (error.kind() == ErrorKind::internal) throw;
    if (lacking != nullptr && exporter) *lacking = exporter->lacking(error.what());
    return error.what();
  }
}

Exported export_checkpoint(const Family& family,
                           std::string_view dialect,
                           const Checkpoint& checkpoint,
                           FamilySet& families,
                           bool float32) {
  try {
    return Exporter(family, dialect, checkpoint, &families).run(float32);
  } catch (const Error& error) {
    if (!std::string_view(error.what()).starts_with("[" + family.name)) throw;
    throw families.located(error, family.name);
  }
}

void for_each_rule(const Family& family,
                   std::string_view dialect,
                   const Checkpoint& checkpoint,
                   const std::function<void(const BoundRule& rule)>& body) {
  Exporter(family, dialect, checkpoint, nullptr).each_rule(body);
}

std::vector<BoundAlias> aliases_of(const Family& family,
                                   std::string_view dialect,
                                   const Checkpoint& checkpoint) {
  return Exporter(family, dialect, checkpoint, nullptr).aliases();
}

Json spec_in_form_of(const Family& family, std::string_view dialect, const Checkpoint& checkpoint) {
  return Exporter(family, dialect, checkpoint, nullptr).spec_in_form();
}

Json family_value(const Family& family,
                  std::string_view dialect,
                  const Checkpoint& checkpoint,
                  std::string_view name) {
  return Exporter(family, dialect, checkpoint, nullptr).value(name);
}

}  // namespace tessera::convert
