#include "tessera/train/objective/distillation/distillation_objective.h"

#include <algorithm>
#include <map>

#include <fmt/ranges.h>

#include "tessera/convert/checkpoint.h"
#include "tessera/convert/checkpoint_place.h"
#include "tessera/convert/tokenizer.h"
#include "tessera/nn/mixer/attention/attention.h"
#include "tessera/nn/mixer/linear/linear_attention.h"
#include "tessera/spec/names.h"
#include "tessera/train/data/dataset.h"
#include "tessera/train/recipe/start.h"

namespace tessera::train {
namespace {

using model::ModelSpec;
using spec::Json;

/// Keys of terms that only one kind has.
constexpr std::pair<const char*, TermOf> kKeysOfTerms[] = {
    {"divergence", TermOf::logits}, {"beta", TermOf::logits},     {"temperature", TermOf::logits},
    {"top_k", TermOf::logits},      {"distance", TermOf::hidden}, {"heads", TermOf::values},
    {"match", TermOf::mixer}};

std::string place_of(size_t term) {
  return fmt::format("objective.terms[{}]", term);
}

/// A token for messages, whatever bytes it has.
std::string shown_token(const std::string& token) {
  return Json(token).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Checks that both vocabularies agree. A missing tokenizer is accepted.
void check_tokens(const DataPlan& plan,
                  const convert::Checkpoint& teacher,
                  const std::string& name) {
  const int64_t own = plan.spec.vocab, its = teacher.spec.vocab;
  std::optional<text::Tokenizer> of_teacher;
  if (plan.data.task() == nullptr) {
    try {
      of_teacher = convert::find_tokenizer(tokenizer_of_start(name));
    } catch (const Error&) {
      // a model without one: only the vocabulary size can be compared
    }
  }
  if (!of_teacher) {
    if (own != its)
      fail(ErrorKind::spec, "objective.teacher",
           "{} has a vocabulary of {}, the spec one of {}; expected a teacher with the same", name,
           its, own);
    return;
  }
  const text::Tokenizer of_data = open_tokenizer(plan.data);
  const int32_t known = of_data.vocab_size();
  const auto token = [](const text::Tokenizer& tokenizer, int32_t id) -> std::string {
    try {
      return std::string(tokenizer.token(id));
    } catch (const Error&) {
      return "";  // an unused id
    }
  };
  if (known > of_teacher->vocab_size() || known > its)
    fail(ErrorKind::spec, "objective.teacher",
         "the vocabulary of {} has {} tokens, data.tokenizer has {}; expected a teacher with the "
         "same tokenizer",
         name, std::min<int64_t>(of_teacher->vocab_size(), its), known);
  for (int32_t id = 0; id < known; ++id)
    if (const std::string a = token(of_data, id), b = token(*of_teacher, id); a != b)
      fail(ErrorKind::spec, "objective.teacher",
           "token {} of {} is {}, that of data.tokenizer {}; expected a teacher with the same "
           "tokenizer",
           id, name, shown_token(b), shown_token(a));
}

/// The requirements of a term for one of the two specs in one layer.
class LayerCheck {
 public:
  LayerCheck(const DistillationTerm& term,
             std::string where,
             const ModelSpec& spec,
             const char* who)
      : term_(term), where_(std::move(where)), spec_(spec), who_(who) {}

  /// Number of compared heads, or of channels; 0 = any.
  int64_t check(int64_t layer) const {
    if (term_.of == TermOf::hidden) {
      if (const std::string reason = spec_.no_exit_reason(layer + 1); !reason.empty())
        fail(ErrorKind::spec, where_, "the {} has no output there: {}", who_, reason);
      return 0;
    }
    const auto at = static_cast<size_t>(layer);
    if (spec_.layers[at].depth)
      refuse(layer,
             fmt::format("depth \"{}\" takes its tokens apart", spec_.layers[at].depth.type()));
    const model::BranchSpec* branch = compared_branch(spec_, layer);
    if (branch == nullptr) refuse(layer, "it has no mixer");
    const auto* attention = dynamic_cast<const nn::AttentionConfig*>(branch->part.config.get());
    const auto* linear = dynamic_cast<const nn::LinearAttentionConfig*>(branch->part.config.get());
    const bool mixes =
        attention != nullptr || (linear != nullptr && linear->feature != nn::FeatureMap::softmax);
    if (term_.of == TermOf::mixer) {
      if (term_.match == MixerMatch::outputs) return 0;
      if (!mixes)
        refuse(layer, fmt::format("mixer \"{}\" shows outputs alone; expected \"attention\" or "
                                  "\"linear_attention\", or match \"outputs\"",
                                  branch->part.type()));
      const int64_t heads = attention != nullptr ? attention->n_heads : linear->n_heads;
      if (term_.match != MixerMatch::heads) return heads;
      return heads * (attention != nullptr ? attention->head_dim : linear->value_dim);
    }
    if (attention == nullptr)
      refuse(layer, fmt::format("mixer \"{}\"; expected \"attention\", or term \"hidden\"",
                                branch->part.type()));
    if (term_.of == TermOf::attention) return attention->n_heads;
    if (term_.heads == 0) return attention->n_kv_heads;
    if (attention->n_kv_heads * attention->head_dim % term_.heads != 0)
      fail(ErrorKind::spec, where_ + ".heads",
           "found {}, which does not divide the {} channels of the {}'s values in layer {}",
           term_.heads, attention->n_kv_heads * attention->head_dim, who_, layer);
    return term_.heads;
  }

 private:
  [[noreturn]] void refuse(int64_t layer, const std::string& reason) const {
    fail(ErrorKind::spec, where_, "\"{}\" of layer {} of the {}: {}", spec::enum_name(term_.of),
         layer, who_, reason);
  }
  const DistillationTerm& term_;
  std::string where_;
  const ModelSpec& spec_;
  const char* who_;
};

void check_layers(const DistillationTerm& term,
                  const std::string& where,
                  const std::vector<LayerPair>& pairs,
                  const ModelSpec& teacher,
                  const ModelSpec& student) {
  const LayerCheck of_teacher(term, where, teacher, "teacher"),
      of_student(term, where, student, "student");
  if (term.of == TermOf::mixer && teacher.d_model != student.d_model)
    fail(ErrorKind::spec, where,
         "\"mixer\" feeds the student's mixers what the teacher's read, {} channels of d_model "
         "{}; expected the same width, or term \"hidden\"",
         teacher.d_model, student.d_model);
  for (const LayerPair& pair : pairs)
    if (const int64_t t = of_teacher.check(pair.teacher), s = of_student.check(pair.student);
        t != s)
      fail(ErrorKind::spec, where,
           "\"{}\" of {} {} in layer {} of the teacher, {} in layer {} of the student; expected as "
           "many{}",
           spec::enum_name(term.of), t,
           term.of == TermOf::mixer && term.match == MixerMatch::heads ? "channels" : "heads",
           pair.teacher, s, pair.student,
           term.of == TermOf::values ? ", or \"heads\" to cut both into" : "");
}

Json dump_term(const DistillationTerm& term) {
  Json json = spec::dump_struct(term);
  for (const auto& [key, of] : kKeysOfTerms)
    if (term.of != of) json.erase(key);
  if (term.divergence != Divergence::jsd) json.erase("beta");
  return json;
}

/// The keys of DistillationKeys and "inner", which is read separately.
void refuse_unknown(const Json& json, const spec::Scope& scope) {
  std::vector<std::string> known{"type", "inner"};
  const Json keys = spec::dump_struct(DistillationKeys());
  for (const auto& [key, value] : keys.items()) known.push_back(key);
  for (const auto& [key, value] : json.items())
    if (std::find(known.begin(), known.end(), key) == known.end())
      fail(ErrorKind::spec, scope.path, "unknown key \"{}\"{}; valid keys: {}", key,
           spec::did_you_mean(key, known), fmt::join(known, ", "));
}

ObjectivePtr read_distillation(const Json& json,
                               const spec::Scope& scope,
                               const model::ModelSpec& spec,
                               const DataRecipe& data) {
  refuse_unknown(json, scope);
  Json own = json;
  own.erase("inner");
  auto keys = read_objective_keys<DistillationKeys>(own, scope);
  if (!own.contains("terms")) keys.terms.emplace_back();
  const Json terms = own.value("terms", Json::array());
  for (size_t i = 0; i < keys.terms.size() && i < terms.size(); ++i) {
    const DistillationTerm& term = keys.terms[i];
    for (const auto& [key, of] : kKeysOfTerms)
      if (terms[i].contains(key) && term.of != of)
        fail(ErrorKind::spec, fmt::format("{}.{}", place_of(i), key),
             "has no meaning for \"{}\"; only \"{}\" has it", spec::enum_name(term.of),
             spec::enum_name(of));
    if (terms[i].contains("beta") && term.divergence != Divergence::jsd)
      fail(ErrorKind::spec, place_of(i) + ".beta",
           "has no meaning for divergence \"{}\"; only \"jsd\" has it",
           spec::enum_name(term.divergence));
  }
  const Json inner = json.value("inner", Json());
  if (inner.is_object() && inner.value("type", Json()) == DistillationKeys::kType)
    fail(ErrorKind::spec, scope.at("inner").path,
         "\"distillation\" within itself; expected another objective, or terms of both");
  for (const char* other : {"replaced_token", "permutation"})
    if (inner.is_object() && inner.value("type", Json()) == Json(other))
      fail(ErrorKind::spec, scope.at("inner").path,
           "\"{}\" reads texts as no teacher does; expected another objective, such as "
           "\"masked_lm\"",
           other);
  for (const char* other : {"preference", "contrastive"})
    if (learns_from_labels(inner) ||
        (inner.is_object() && inner.value("type", Json()) == Json(other)))
      fail(ErrorKind::spec, scope.at("inner").path,
           "{} has no token targets; expected an objective with some",
           inner.value("type", Json()).dump());
  return std::make_shared<DistillationConfig>(std::move(keys), read_objective(inner, spec, data));
}

}  // namespace

std::vector<LayerPair> even_layers(int64_t teacher, int64_t student) {
  std::vector<LayerPair> out;
  const int64_t n = std::min(teacher, student);
  for (int64_t i = 1; i <= n; ++i) out.push_back({i * teacher / n - 1, i * student / n - 1});
  return out;
}

std::vector<std::string> loss_names(const std::vector<DistillationTerm>& terms) {
  std::vector<std::string> out;
  std::map<TermOf, int64_t> seen;
  for (const DistillationTerm& term : terms) {
    const int64_t n = ++seen[term.of];
    const std::string name = spec::enum_name(term.of);
    out.push_back(n == 1 ? name : fmt::format("{}_{}", name, n));
  }
  return out;
}

const model::BranchSpec* compared_branch(const ModelSpec& spec, int64_t layer) {
  for (const model::GroupSpec& group : spec.layers[static_cast<size_t>(layer)].groups)
    for (const model::BranchSpec& branch : group.branches)
      if (branch.slot == spec::Slot::mixer) return &branch;
  return nullptr;
}

std::string name_of_branch(const ModelSpec& spec, int64_t layer, const model::BranchSpec& branch) {
  return spec.under(fmt::format("layers.{}.{}", layer, branch.name));
}

Json DistillationConfig::dump() const {
  Json json = spec::dump_struct(keys_);
  json["type"] = DistillationKeys::kType;
  json["terms"] = Json::array();
  for (const DistillationTerm& term : keys_.terms) json["terms"].push_back(dump_term(term));
  json["inner"] = inner_->dump();
  return json;
}

bool DistillationConfig::has(TermOf of) const {
  return std::any_of(keys_.terms.begin(), keys_.terms.end(),
                     [of](const DistillationTerm& term) { return term.of == of; });
}

bool DistillationConfig::runs_student() const {
  return keys_.alpha < 1 ||
         std::any_of(keys_.terms.begin(), keys_.terms.end(),
                     [](const DistillationTerm& term) { return term.of != TermOf::mixer; });
}

TeacherReads DistillationConfig::teacher_reads(const ModelSpec& student,
                                               const ModelSpec& teacher) const {
  using model::Arch;
  if (student.mask && teacher.arch == Arch::encoder_decoder && !teacher.mask)
    return TeacherReads::answer;
  if (teacher.mask && !student.mask)
    fail(ErrorKind::spec, "objective.teacher",
         "sees targets whole, and with them what the student is to foretell; expected a teacher "
         "that writes from left to right");
  if (student.arch == teacher.arch) return TeacherReads::same;
  if (teacher.arch == Arch::decoder && student.arch == Arch::encoder) return TeacherReads::clean;
  if (teacher.arch == Arch::decoder) return TeacherReads::joined;
  fail(ErrorKind::spec, "objective.teacher",
       "an {} as the teacher of a{} {}: {}; expected the same architecture, or a decoder",
       name_of(teacher.arch), student.arch == Arch::decoder ? "" : "n", name_of(student.arch),
       teacher.arch == Arch::encoder ? "it sees what the student is to foretell"
                                     : "the student has no source for it to read");
}

std::vector<LayerPair> DistillationConfig::layers(const ModelSpec& student,
                                                  const ModelSpec& teacher) const {
  const int64_t of_teacher = std::ssize(teacher.layers), of_student = std::ssize(student.layers);
  if (!keys_.layers) return even_layers(of_teacher, of_student);
  std::vector<LayerPair> out;
  for (size_t i = 0; i < keys_.layers->size(); ++i) {
    const std::vector<int64_t>& pair = (*keys_.layers)[i];
    const std::string where = fmt::format("objective.layers[{}]", i);
    if (pair.size() != 2)
      fail(ErrorKind::spec, where,
           "{} numbers; expected two, the teacher's layer and the student's", pair.size());
    const auto in_range = [&](int64_t layer, int64_t n, const char* who) {
      if (layer < 0 || layer >= n)
        fail(ErrorKind::spec, where, "layer {} of the {}, which has {}; expected 0 to {}", layer,
             who, n, n - 1);
    };
    in_range(pair[0], of_teacher, "teacher");
    in_range(pair[1], of_student, "student");
    out.push_back({pair[0], pair[1]});
  }
  if (out.empty())
    fail(ErrorKind::spec, "objective.layers", "no pairs; expected some, or null for all evenly");
  return out;
}

void DistillationConfig::check(const ModelPlan& plan) const {
  inner_->check(plan);
  const ModelSpec& student = plan.spec;
  if (keys_.terms.empty())
    fail(ErrorKind::spec, "objective.terms", "none; expected some, or another objective");
  if (plan.train.windows == WindowOrder::carried)
    fail(ErrorKind::spec, "train.windows",
         "\"carried\" rows continue from a state, and the teacher has none; use \"isolated\"");
  if (!std::filesystem::exists(keys_.teacher))
    fail(ErrorKind::file, "objective.teacher", "{}: no such file or folder; expected a model",
         keys_.teacher);
  const convert::Checkpoint checkpoint = load_without_keys(keys_.teacher, keys_.ignore_keys);
  const ModelSpec& teacher = checkpoint.spec;
  const TeacherReads reads = teacher_reads(student, teacher);
  check_tokens(plan, checkpoint, convert::checkpoint_place(keys_.teacher).string());
  // maximum of source and target each
  const int64_t longest = plan.train.length * (reads == TeacherReads::joined ? 2 : 1);
  if (const int64_t limit = teacher.max_positions(); limit > 0 && longest > limit)
    fail(ErrorKind::spec, "train.length", "{} tokens{}; the teacher has {} positions",
         plan.train.length, longest > plan.train.length ? " of a source and of its answer" : "",
         limit);
  const std::vector<LayerPair> pairs = layers(student, teacher);
  for (size_t i = 0; i < keys_.terms.size(); ++i) {
    const DistillationTerm& term = keys_.terms[i];
    const std::string where = place_of(i);
    if (term.of == TermOf::logits) {
      if (!teacher.head)
        fail(ErrorKind::spec, where, "the teacher has no head, so no logits; expected \"hidden\"");
      const int64_t classes = std::min(teacher.vocab, student.vocab);
      if (term.top_k >= classes)
        fail(ErrorKind::spec, where + ".top_k", "found {}; expected 0 to {}, of {} classes",
             term.top_k, classes - 1, classes);
      continue;
    }
    if (reads != TeacherReads::same)
      fail(ErrorKind::spec, where,
           "\"{}\" of a teacher that is a {} and a student that is an {}, whose tokens are at "
           "other positions; expected \"logits\"",
           spec::enum_name(term.of), name_of(teacher.arch), name_of(student.arch));
    using Of = nn::RecomputeOf;
    const Of again = plan.train.recompute.of;
    if ((term.of == TermOf::attention || term.of == TermOf::values) &&
        (again == Of::layers || again == Of::mixers))
      fail(ErrorKind::spec, "train.recompute",
           "\"{}\" keeps nothing of what objective.terms[{}] compares; expected \"none\"",
           spec::enum_name(again), i);
    check_layers(term, where, pairs, teacher, student);
  }
}

std::vector<ObjectiveKind> distillation_kinds() {
  ObjectiveKind kind{DistillationKeys::kType, read_distillation, [] {
                       Json schema = spec::struct_schema<DistillationKeys>();
                       schema["properties"]["inner"] = {
                           {"description", "the student's own objective; null = the next token"},
                           {"type", Json::array({"object", "null"})}};
                       return schema;
                     }};
  kind.paths = {"teacher"};
  return {kind};
}

}  // namespace tessera::train
