#include <algorithm>
#include <cstring>

#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/convert/expr_node.h"
#include "tessera/convert/mapping.h"
#include "tessera/format/file_source.h"

namespace tessera::convert {
namespace {

constexpr int64_t kMaxTensorValues = 65'536;  // that an expression may ask for
constexpr size_t kMaxPrefixes = 16;

std::string text_argument(const Json& value, std::string_view function) {
  if (!value.is_string())
    fail(ErrorKind::spec, "families", "{} takes the name of a tensor, not {}", function,
         shown(value));
  return value.get<std::string>();
}

Json shape_json(const TensorView& tensor) {
  Json shape = Json::array();
  for (const int64_t n : tensor.shape) shape.push_back(n);
  return shape;
}

Json values_json(const TensorView& tensor) {
  if (format::element_count(tensor.shape) > kMaxTensorValues)
    fail(ErrorKind::file, "families",
         "tensor {} has more than {} values; a family may read smaller ones only",
         format::in_quotes(tensor.name), kMaxTensorValues);
  const TensorView floats = as_float32(tensor);
  Json values = Json::array();
  for (size_t i = 0; i < floats.data.size(); i += sizeof(float)) {
    float value;
    std::memcpy(&value, floats.data.data() + i, sizeof(float));
    values.push_back(static_cast<double>(value));
  }
  return values;
}

void add_family(Environment& env, const Family& family) {
  for (const auto& [name, table] : family.tables) env.constant(name, table);
  for (const auto& [name, function] : family.functions) env.function(name, function);
  for (const auto& [name, body] : family.let) env.lazy(name, body);
}

/// The config with the members of one of its objects above its own.
Json lifted(const Json& config, const std::string& key) {
  if (key.empty() || !config.contains(key) || !config.at(key).is_object()) return config;
  Json result = config;
  const Json inner = result[key];
  result.erase(key);
  for (const auto& [name, value] : inner.items()) result[name] = value;
  return result;
}

const Json* at_path(const Json& config, std::string_view path) {
  const Json* at = &config;
  while (!path.empty()) {
    const size_t dot = std::min(path.find('.'), path.size());
    if (!at->is_object()) return nullptr;
    const auto found = at->find(path.substr(0, dot));
    if (found == at->end()) return nullptr;
    at = &*found;
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  return at;
}

}  // namespace

Importer::Importer(const Family& family,
                   const Foreign& foreign,
                   FamilySet& families,
                   KeyOptions options,
                   Tied tied)
    : family_(family),
      dialect_(family.dialect(foreign.dialect)),
      foreign_(foreign),
      families_(families),
      options_(std::move(options)) {
  add_family(env_, family);
  config_ = dialect_.base_config(lifted(foreign.config, dialect_.lift), foreign.file);
  for (const std::string& key : families.null_where_zero(foreign.dialect))
    if (const auto found = config_.find(key); found != config_.end() && *found == 0)
      *found = nullptr;
  env_.constant("config", config_);
  for (const auto& [name, body] : dialect_.read) env_.lazy(name, body);
  if (tied == Tied::never) env_.constant("tied", false);
  add_tensor_functions();
}

bool Importer::exists(const std::string& name) const {
  const auto named = [&](const auto& t) { return t.name == name; };
  const auto& unsupported = foreign_.tensors->unsupported();
  return std::any_of(unsupported.begin(), unsupported.end(), named) ||
         foreign_.tensors->find(name) != nullptr;
}

/// What expressions may ask about the tensors of the file.
void Importer::add_tensor_functions() {
  env_.host("has_tensor", 1, [this](std::span<const Json> a) -> Json {
    return exists(dialect_.names.to_file(text_argument(a[0], "has_tensor")));
  });
  env_.host("shape", 1, [this](std::span<const Json> a) -> Json {
    const std::string name = dialect_.names.to_file(text_argument(a[0], "shape"));
    return exists(name) ? shape_json(foreign_.tensors->at(name)) : absent();
  });
  env_.host("tensor_values", 1, [this](std::span<const Json> a) -> Json {
    const std::string name = dialect_.names.to_file(text_argument(a[0], "tensor_values"));
    if (!exists(name)) return absent();
    used_.insert(name);
    return values_json(foreign_.tensors->at(name));
  });
  // the first of several prefixes under which the file has a tensor of this name
  env_.host("find_prefix", 2, [this](std::span<const Json> a) -> Json {
    if (!a[0].is_array() || a[0].empty() || a[0].size() > kMaxPrefixes)
      fail(ErrorKind::spec, family_.name, "find_prefix takes a list of prefixes and a name");
    const std::string name = text_argument(a[1], "find_prefix");
    for (const Json& prefix : a[0])
      if (exists(dialect_.names.to_file(text_argument(prefix, "find_prefix") + name)))
        return prefix;
    return a[0][0];
  });
}

Json Importer::spec_json() {
  if (!family_.reads(foreign_.dialect, foreign_.config))
    fail(ErrorKind::file, foreign_.file, "is not of family {}, which reads files where {}",
         family_.name, dialect_.when->text());
  check_claims(config_, "");
  report_unknown();
  check_expected();
  for (const std::string& what : family_.unsure)
    remarks_.push_back(fmt::format("family {} is unsure: {}", family_.name, what));
  return family_.spec->evaluate(env_);
}

void Importer::check_claims(const Json& config, const std::string& prefix) {
  const std::vector<std::string>& metadata_keys = families_.metadata_keys(foreign_.dialect);
  for (const auto& [key, value] : config.items()) {
    const std::string path = prefix.empty() ? key : prefix + "." + key;
    if (dialect_.ignores_key(path) || dialect_.claims.contains(path + ".*")) continue;
    if (prefix.empty() && !dialect_.claims.contains(path) && matches_any(key, metadata_keys))
      continue;
    const bool members = value.is_object() && !value.empty();
    if (members &&
        (has_claims_below(path) || !families_.readers_of(foreign_.dialect, path + ".").empty()))
      check_claims(value, path);
    else if (members || !dialect_.claims.contains(path))
      check_key(path, value);
  }
}

bool Importer::has_claims_below(const std::string& path) const {
  const auto at = dialect_.claims.lower_bound(path + ".");
  return at != dialect_.claims.end() && at->starts_with(path + ".");
}

/// A key that the family does not know.
void Importer::check_key(const std::string& path, const Json& value) {
  if (families_.switched_off(foreign_.dialect, path, value)) return;
  std::vector<std::string> readers = families_.readers_of(foreign_.dialect, path);
  if (dry_ != nullptr) {
    dry_->keys.push_back({path, value, std::move(readers)});
    return;
  }
  if (readers.empty()) {
    unknown_.push_back(path);
    return;
  }
  constexpr size_t kShown = 3;
  const bool more = readers.size() > kShown;
  if (more) readers.resize(kShown);
  fail(
      ErrorKind::file, foreign_.file,
      "key {} = {} is not known to family {}, and changes what {}{} compute; --ignore-key {} reads "
      "the model as if the key were not there",
      format::in_quotes(dialect_.file_key(path)), shown(value), family_.name,
      fmt::join(readers, ", "), more ? " and others" : "", dialect_.file_key(path));
}

/// Keys that mean nothing to any family: a line, or with `strict` an error.
void Importer::report_unknown() {
  if (unknown_.empty()) return;
  constexpr size_t kShown = 8;
  std::string names;
  for (size_t i = 0; i < std::min(unknown_.size(), kShown); ++i) {
    const std::string near =
        spec::nearest_name(unknown_[i], {dialect_.claims.begin(), dialect_.claims.end()});
    names +=
        fmt::format("{}{}{}", i == 0 ? "" : ", ", format::in_quotes(dialect_.file_key(unknown_[i])),
                    near.empty() ? "" : fmt::format(" (did they mean \"{}\"?)", near));
  }
  if (unknown_.size() > kShown) names += fmt::format(" and {} more", unknown_.size() - kShown);
  const std::string keys =
      unknown_.size() == 1 ? "1 key is" : fmt::format("{} keys are", unknown_.size());
  if (options_.strict)
    fail(ErrorKind::file, foreign_.file,
         "{} known to no family: {}; without --strict they are ignored", keys, names);
  remarks_.push_back(
      fmt::format("{}: {} known to no family and ignored: {} (--strict refuses them)",
                  foreign_.file, keys, names));
}

void Importer::check_expected() {
  for (const auto& [path, allowed] : dialect_.expect) {
    const Json* value = at_path(config_, path);
    if (value == nullptr) continue;
    std::string known;
    bool found = false;
    for (const Json& candidate : allowed) {
      // null is how some files say false or 0
      found = found || equal(candidate, *value) ||
              (value->is_null() && (candidate == false || candidate == 0));
      known += (known.empty() ? "" : " or ") + shown(candidate);
    }
    if (found) continue;
    const std::string what =
        fmt::format("{} = {} is not supported by family {}; expected {}", dialect_.file_key(path),
                    shown(*value), family_.name, known);
    if (dry_ == nullptr) throw Error(ErrorKind::file, foreign_.file, what);
    dry_->errors.push_back(what);
  }
}

// --- tensors ----------------------------------------------------------------------------------

std::string Importer::known_name(const std::vector<NamePattern>& spellings, const Local* locals) {
  std::string first;
  for (const NamePattern& spelling : spellings) {
    const std::string name = dialect_.names.to_file(spelling.expand(env_, locals));
    if (foreign_.tensors->find(name) != nullptr) return name;
    if (first.empty()) first = name;
  }
  return "!" + first;  // none is there
}

/// A tensor of the file under another name of a parameter; "" = none.
std::string Importer::other_name(const std::string& ours) {
  std::string found;
  const std::function<void(const TensorRule&, const Local*)> look = [&](const TensorRule& rule,
                                                                        const Local* locals) {
    // aliases of the whole model stand in no loop
    if (rule.loop || (rule.condition && !rule.condition->test(env_, locals))) return;
    for (const TensorRule& child : rule.rules) look(child, locals);
    const auto side = rule.sides.find(foreign_.dialect);
    if (rule.kind != TensorRule::Kind::same_as || side == rule.sides.end() ||
        rule.ours.front().spellings.front().expand(env_, locals) != ours)
      return;
    for (const RuleName& name : side->second.names)
      if (!name.loop)
        if (const std::string known = known_name(name.spellings, locals); !known.starts_with('!'))
          found = known;
  };
  for (const TensorRule& rule : family_.rules) look(rule, nullptr);
  return found;
}

void Importer::bind_rule(const TensorRule& rule, const Local* locals, Checkpoint& checkpoint) {
  if (rule.loop) {
    TensorRule once = rule;
    once.loop.reset();
    rule.loop->run(env_, locals, [&](const Local* inner) { bind_rule(once, inner, checkpoint); });
    return;
  }
  env_.step(family_.name, 10);
  if (rule.condition && !rule.condition->test(env_, locals)) return;
  for (const TensorRule& child : rule.rules) bind_rule(child, locals, checkpoint);
  const auto side = rule.sides.find(foreign_.dialect);
  if (rule.kind == TensorRule::Kind::group || rule.kind == TensorRule::Kind::values ||
      side == rule.sides.end())
    return;
  if (rule.kind == TensorRule::Kind::convert) return bind_convert(rule, side->second, locals);
  const std::string ours = rule.ours.front().spellings.front().expand(env_, locals);
  if (rule.inherited && !family_.base_gives({ours}, {})) return;
  for (const RuleName& foreign : side->second.names)
    foreign.each(env_, locals, [&](const Local* inner) {
      const std::string name = known_name(foreign.spellings, inner);
      if (name.starts_with('!')) return;
      used_.insert(name);
      if (rule.kind == TensorRule::Kind::same_as) {
        same_.push_back({ours, name});
      } else if (rule.kind == TensorRule::Kind::keep) {
        checkpoint.kept.push_back(foreign_.tensors->at(name));
        checkpoint.kept.back().name = ours;
      }
    });
}

/// Quantisers store [out, in], whatever the module had: where a family turns a matrix over, what is
/// read as [in, out] would be another matrix.
void Importer::refuse_turned(const std::string& name) const {
  fail(ErrorKind::file, foreign_.tensors->file(),
       "tensor {} is quantized, as a matrix [out, in]; family {} transposes it, which is not "
       "supported",
       format::in_quotes(name), family_.name);
}

void Importer::bind_convert(const TensorRule& rule, const ForeignSide& side, const Local* locals) {
  std::vector<std::string> ours;
  for (const RuleName& name : rule.ours)
    name.each(env_, locals, [&](const Local* inner) {
      ours.push_back(name.spellings.front().expand(env_, inner));
    });
  if (!rule.inherited)
    own_.insert(ours.begin(), ours.end());
  else if (!family_.base_gives(ours, own_))
    return;
  std::vector<TensorView> tensors;
  std::vector<std::string> sources;
  bool in_blocks = false;  // a quantized matrix among them
  const size_t n_missing = dry_ == nullptr ? 0 : dry_->missing.size();
  for (const RuleName& foreign : side.names)
    foreign.each(env_, locals, [&](const Local* inner) {
      std::string name = known_name(foreign.spellings, inner);
      // of tied matrices a file may hold either
      if (name.starts_with('!') && ours.size() == 1 && ours[0] == model::kTokenTable)
        if (const std::string other = other_name(ours[0]); !other.empty()) name = other;
      if (name.starts_with('!') && dry_ != nullptr) {
        dry_->missing.push_back({foreign.spellings.front().expand(env_, inner),
                                 ours,
                                 {},
                                 !side.steps.empty(),
                                 side.names.size() == 1 && !side.names.front().loop});
        return;
      }
      if (name.starts_with('!'))
        fail(ErrorKind::file, foreign_.tensors->file(),
             "tensor {} is missing; family {} needs it for {}", format::in_quotes(name.substr(1)),
             family_.name, fmt::join(ours, ", "));
      used_.insert(name);
      tensors.push_back(foreign_.tensors->at(name));
      sources.push_back(format::in_quotes(name));
      if (foreign_.packed == nullptr || !foreign_.packed->contains(name)) return;
      const bool blocks = is_block_type(tensors.back().dtype);
      if (!blocks && side.steps.transpose()) refuse_turned(name);
      in_blocks = in_blocks || blocks;
    });
  if (dry_ != nullptr && dry_->missing.size() > n_missing) return;
  try {
    side.steps.apply(tensors, env_, locals);
  } catch (const Error& error) {
    if (dry_ != nullptr) {
      dry_->errors.push_back(fmt::format("{}: {}", fmt::join(sources, ", "), error.what()));
      return;
    }
    constexpr std::string_view kTag = "[convert] ";
    const std::string_view what = error.what();
    if (error.kind() != ErrorKind::file || !what.starts_with(kTag)) throw;
    // the steps know their tensors, not where they came from
    throw Error(ErrorKind::file, foreign_.tensors->file(), what.substr(kTag.size()));
  }
  if (tensors.size() != ours.size())
    fail(ErrorKind::spec, family_.name, "{} gives {} tensors for {}", fmt::join(sources, ", "),
         tensors.size(), fmt::join(ours, ", "));
  for (size_t i = 0; i < ours.size(); ++i) {
    tensors[i].name = ours[i];
    if (in_blocks && !is_block_type(tensors[i].dtype)) {
      // moves of whole rows leave blocks as they are
      if (side.steps.transpose())
        refuse_turned(side.names.front().spellings.front().expand(env_, locals));
      widened_.push_back(ours[i]);
    }
    if (!found_
             .emplace(ours[i], FoundTensor{tensors[i], fmt::format("{}", fmt::join(sources, ", "))})
             .second)
      fail(ErrorKind::spec, family_.name, "two rules give {}", ours[i]);
  }
}

void Importer::read_tensors(Checkpoint& checkpoint) {
  for (const TensorRule& rule : family_.rules) bind_rule(rule, nullptr, checkpoint);
  const std::string& file = foreign_.tensors->file();
  for (const spec::ParamDecl& decl : model::parameters(checkpoint.spec)) {
    const auto found = found_.find(decl.name);
    if (found == found_.end())
      fail(ErrorKind::file, file,
           "family {} names no tensor for {}, which the spec of this config has", family_.name,
           decl.name);
    const auto& [tensor, source] = found->second;
    if (tensor.shape != decl.shape)
      fail(ErrorKind::file, file, "tensor {} gives {} the shape {}; the config says {}", source,
           decl.name, format::shape_text(tensor.shape), format::shape_text(decl.shape));
    if (!layout_of(tensor.dtype).is_float && !is_block_type(tensor.dtype))
      fail(ErrorKind::file, file, "tensor {} has type {}; expected a floating-point or block type",
           source, name_of(tensor.dtype));
    checkpoint.tensors.push_back(tensor);
  }
  if (found_.size() != checkpoint.tensors.size()) {
    std::set<std::string, std::less<>> names;
    for (const TensorView& tensor : checkpoint.tensors) names.insert(tensor.name);
    for (const auto& [name, found] : found_)
      if (!names.contains(name))
        fail(ErrorKind::file, file,
             "tensor {} is given for {}, which the spec of this config lacks", found.source, name);
  }
  check_unused(checkpoint);
  if (!widened_.empty())
    checkpoint.remarks.push_back(
        fmt::format("{} matrices made of quantized ones are held in float32, as the family "
                    "computes them or joins several types: {}{}",
                    widened_.size(), widened_.front(), widened_.size() > 1 ? ", ..." : ""));
}

void Importer::check_same(const Checkpoint& checkpoint) const {
  for (const auto& [ours, name] : same_)
    if (!equal_values(checkpoint.tensor(ours), foreign_.tensors->at(name)))
      fail(
          ErrorKind::file, foreign_.tensors->file(),
          "tensor {} differs from {}, which the config says it is tied to; expected equal ones, or "
          "tie_word_embeddings false",
          format::in_quotes(name), ours);
}

bool Importer::head_differs(const Checkpoint& checkpoint) const {
  const auto differs = [&](const Same& same) {
    return !equal_values(checkpoint.tensor(same.ours), foreign_.tensors->at(same.foreign));
  };
  const auto of_table = [](const Same& same) { return same.ours == model::kTokenTable; };
  return checkpoint.spec.head && std::count_if(same_.begin(), same_.end(), of_table) == 1 &&
         std::any_of(same_.begin(), same_.end(),
                     [&](const Same& same) { return of_table(same) && differs(same); });
}

std::string Importer::reason_unused(const std::string& name, bool& head, std::string& glob) const {
  const std::string of_base = dialect_.names.to_base(name);
  for (const auto& [list, of_heads] :
       {std::pair(&dialect_.ignored_heads, true), std::pair(&dialect_.ignored_tensors, false)})
    for (const auto& [pattern, why] : *list)
      if (matches_glob(name, pattern) || matches_glob(of_base, pattern)) {
        head = of_heads;
        glob = pattern;
        return why;
      }
  return "";
}

void Importer::check_unused(Checkpoint& checkpoint) {
  std::map<std::string, std::string> heads;
  const auto check = [&](const std::string& name) {
    if (used_.contains(name)) return;
    bool head = false;
    std::string glob;
    const std::string why = reason_unused(name, head, glob);
    if (glob.empty())
      fail(ErrorKind::file, foreign_.tensors->file(),
           "tensor {} has no place in family {} with this config", format::in_quotes(name),
           family_.name);
    checkpoint.notes.push_back(fmt::format("unused tensors {}: {}{}", format::in_quotes(name),
                                           head ? "a head for " : "", why));
    if (head) heads.emplace(glob, why);
  };
  for (const TensorView& tensor : foreign_.tensors->tensors()) check(tensor.name);
  for (const format::UnsupportedTensor& tensor : foreign_.tensors->unsupported())
    check(tensor.name);
  for (const auto& [glob, what] : heads)
    checkpoint.lost_heads.push_back(fmt::format("{} ({})", what, glob));
}

// --- dry runs -----------------------------------------------------------------------------------

size_t DryRun::refused_keys() const {
  return static_cast<size_t>(
      std::count_if(keys.begin(), keys.end(), [](const Key& key) { return !key.readers.empty(); }));
}

bool DryRun::complete() const {
  return errors.empty() && missing.empty() && misshapen.empty() && unmapped.empty() &&
         ungiven.empty() && refused_keys() == 0 && spec.has_value();
}

Json Importer::value(std::string_view name) {
  try {
    const Json* found = env_.find(name);
    return found == nullptr ? absent() : *found;
  } catch (const Error&) {
    return absent();
  }
}

DryRun Importer::dry_run(bool placed) {
  DryRun run;
  dry_ = &run;
  Checkpoint checkpoint;
  const auto collect = [&](const auto& body) {
    try {
      body();
      return true;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::internal) throw;
      run.errors.emplace_back(placed ? families_.located(error, family_.name).what()
                                     : error.what());
      return false;
    }
  };
  collect([&] {
    if (!family_.reads(foreign_.dialect, foreign_.config))
      fail(ErrorKind::file, foreign_.file, "is not of family {}, which reads files where {}",
           family_.name, dialect_.when->text());
  });
  collect([&] { check_claims(config_, ""); });
  collect([&] { check_expected(); });
  if (collect([&] {
        run.spec_json = family_.spec->evaluate(env_);
        checkpoint.spec = model::read_model_spec(run.spec_json);
      })) {
    run.spec = checkpoint.spec;
    collect([&] {
      for (const TensorRule& rule : family_.rules) bind_rule(rule, nullptr, checkpoint);
    });
    check_dry(checkpoint);
  }
  dry_ = nullptr;
  return run;
}

/// What the rules gave against the spec and the file.
void Importer::check_dry(const Checkpoint& checkpoint) {
  std::map<std::string, std::vector<int64_t>, std::less<>> shapes;
  for (const spec::ParamDecl& decl : model::parameters(checkpoint.spec))
    shapes[decl.name] = decl.shape;
  std::set<std::string, std::less<>> asked;
  for (DryRun::Missing& missing : dry_->missing)
    for (const std::string& ours : missing.ours) {
      asked.insert(ours);
      const auto found = shapes.find(ours);
      missing.shapes.push_back(found == shapes.end() ? std::vector<int64_t>() : found->second);
    }
  for (const auto& [name, shape] : shapes) {
    const auto found = found_.find(name);
    if (found == found_.end()) {
      if (!asked.contains(name)) dry_->ungiven.push_back(name);
    } else if (found->second.tensor.shape != shape) {
      dry_->misshapen.push_back({found->second.source, name, found->second.tensor.shape, shape});
    } else {
      ++dry_->mapped;
    }
  }
  for (const auto& [name, found] : found_)
    if (!shapes.contains(name))
      dry_->errors.push_back(fmt::format(
          "tensor {} is given for {}, which the spec of this config lacks", found.source, name));
  const auto check = [&](const std::string& name) {
    bool head = false;
    std::string glob;
    reason_unused(name, head, glob);
    if (!used_.contains(name) && glob.empty()) dry_->unmapped.push_back(name);
  };
  for (const TensorView& tensor : foreign_.tensors->tensors()) check(tensor.name);
  for (const format::UnsupportedTensor& tensor : foreign_.tensors->unsupported())
    check(tensor.name);
}

// --- specs as expressions see them ------------------------------------------------------------

Json spec_view(const Json& resolved) {
  Json view = resolved;
  if (resolved.contains("stacks")) {
    for (auto& [name, stack] : view["stacks"].items()) stack = spec_view(stack);
    return view;
  }
  Json layers = Json::array();
  for (const Json& layer : resolved.at("layers")) {
    Json flat = Json::object();
    const auto add_branch = [&](const Json& branch, const Json& residual) {
      const std::string name = branch.at("name");
      for (const char* slot : {"mixer", "ffn"})
        if (branch.contains(slot)) flat[name] = branch[slot];
      flat[name + "_norm"] = branch.value("norm", Json(nullptr));
      flat[name + "_residual"] = residual;
      for (const char* key : {"inputs", "add", "share", "adapters", "quantization"})
        if (branch.contains(key)) flat[name + "_" + key] = branch[key];
    };
    if (layer.contains("share")) flat["share"] = layer["share"];
    for (const Json& group : layer.at("branches")) {
      if (group.contains("parallel")) {
        for (const Json& branch : group["parallel"]) add_branch(branch, group.at("residual"));
      } else {
        add_branch(group, group.at("residual"));
      }
    }
    for (int64_t i = layer.value("repeat", int64_t{1}); i > 0; --i) layers.push_back(flat);
  }
  view["layers"] = std::move(layers);
  if (resolved.contains("predictors")) {
    Json predictors = Json::array();
    for (const Json& predictor : resolved["predictors"])
      for (int64_t i = predictor.value("repeat", int64_t{1}); i > 0; --i)
        predictors.push_back(spec_view(predictor));
    view["predictors"] = std::move(predictors);
  }
  return view;
}

}  // namespace tessera::convert
