#include "tessera/train/objective/distillation/distillation.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "tessera/base/sha256.h"
#include "tessera/infer/loading/weights_fingerprint.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/model/call_plan.h"
#include "tessera/model/placement.h"
#include "tessera/ops/random.h"
#include "tessera/ops/weights/product.h"
#include "tessera/train/loop/batch_tensors.h"
#include "tessera/train/objective/distillation/distillation_losses.h"
#include "tessera/train/objective/distillation/distillation_objective.h"
#include "tessera/train/objective/loss.h"
#include "tessera/train/recipe/start.h"

namespace tessera::train {
namespace {

/// The samples of another dataset, for a run that also depends on its teacher.
class TaughtSource final : public Dataset {
 public:
  /// `samples` must outlive it.
  TaughtSource(const Dataset& samples, const model::Model& teacher)
      : samples_(samples),
        key_(sha256(samples_.key() + infer::weights_fingerprint(teacher.weights()).dump())) {}
  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>& begun) const override {
    return samples_.train(first, count, begun);
  }
  int64_t valid_samples() const override { return samples_.valid_samples(); }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    return samples_.valid(samples);
  }
  double tokens_per_byte() const override { return samples_.tokens_per_byte(); }
  const std::string& key() const override { return key_; }

 private:
  const Dataset& samples_;
  std::string key_;
};

/// Records named values of a forward pass. Values of a mixer have the prefix of its branch:
/// "layers.3.mixer.weights".
class Watch {
 public:
  void want(std::string name) { names_.insert(std::move(name)); }
  bool any() const { return !names_.empty(); }
  nn::Probe probe() {
    return {[this](const std::string& name, const Tensor& value) {
              kept_[key_of(name)].push_back(value);
            },
            [this](const std::string& name) {
              constexpr std::string_view kIn = ".in";
              // a layer with shared parameters reports under another name
              if (name.ends_with(kIn)) branch_ = name.substr(0, name.size() - kIn.size());
              return names_.contains(key_of(name));
            }};
  }
  /// The recorded values, some once per document.
  const std::vector<Tensor>& all(const std::string& name) const {
    const auto found = kept_.find(name);
    require(found != kept_.end(), "distillation", "nothing was seen of \"{}\"", name);
    return found->second;
  }
  const Tensor& one(const std::string& name) const { return all(name).front(); }

 private:
  std::string key_of(const std::string& name) const {
    for (const char* shown : {".weights", ".heads", ".values"})
      if (name.ends_with(shown)) return branch_ + shown;
    return name;
  }
  std::set<std::string> names_;
  std::string branch_;
  std::map<std::string, std::vector<Tensor>> kept_;
};

/// The values that a term compares in one layer of a model.
std::string place(const DistillationTerm& term, const model::ModelSpec& spec, int64_t layer) {
  if (term.of == TermOf::hidden) return spec.under(fmt::format("layers.{}.out", layer));
  const std::string branch = name_of_branch(spec, layer, *compared_branch(spec, layer));
  if (term.of == TermOf::attention) return branch + ".weights";
  if (term.of == TermOf::values) return branch + ".values";
  if (term.match == MixerMatch::outputs) return branch + ".out";
  return branch + (term.match == MixerMatch::heads ? ".heads" : ".weights");
}

std::string input_place(const model::ModelSpec& spec, int64_t layer) {
  return name_of_branch(spec, layer, *compared_branch(spec, layer)) + ".in";
}

class Distillation final : public Objective {
 public:
  Distillation(const ModelPlan& plan,
               const ObjectivePtr& objective,
               const model::Model& teacher,
               std::unique_ptr<Objective> own,
               at::Device device)
      : Objective(std::make_unique<TaughtSource>(own->source(), teacher)),
        objective_(objective),
        config_(dynamic_cast<const DistillationConfig&>(*objective)),
        terms_(config_.keys().terms),
        losses_(loss_names(terms_)),
        teacher_(model::to_device(teacher, device)),
        own_(std::move(own)),
        reads_(config_.teacher_reads(plan.spec, teacher_.spec())),
        student_whole_(plan.spec.mask.has_value()),
        pairs_(config_.layers(plan.spec, teacher_.spec())),
        classes_(std::min(plan.spec.vocab, teacher_.spec().vocab)) {
    if (config_.has(TermOf::logits) && !teacher_.has_head())
      fail(ErrorKind::spec, "objective.teacher",
           "its head gives no logits of tokens; expected a teacher that does, or term \"hidden\"");
    if (plan.adapter && adapter_keys<VirtualTokenKeys>(*plan.adapter))
      for (const DistillationTerm& term : terms_)
        if (term.of != TermOf::logits)
          fail(ErrorKind::spec, "objective.terms",
               "\"{}\" is not available with virtual tokens, which the teacher lacks; expected "
               "\"logits\"",
               spec::enum_name(term.of));
    const int64_t to = teacher_.spec().d_model, from = plan.spec.d_model;
    if (!config_.has(TermOf::hidden) || to == from) return;
    const RandomKey key = RandomKey(static_cast<uint64_t>(plan.train.seed)).fold("objective");
    for (const LayerPair& pair : pairs_) {
      const spec::ParamDecl decl{fmt::format("objective.maps.{}.{}", pair.teacher, pair.student),
                                 {to, from},
                                 spec::Init::normal(1 / std::sqrt(static_cast<double>(from)))};
      const auto known = std::find_if(maps_.begin(), maps_.end(), [&](const ParameterBeside& map) {
        return map.decl.name == decl.name;
      });
      if (known == maps_.end())
        maps_.push_back(
            {decl, ops::initial_values(decl, key, at::kFloat).to(device).requires_grad_(true)});
    }
  }

  std::string_view name() const override { return DistillationKeys::kType; }
  std::string main_loss() const override {
    return config_.runs_student() ? own_->main_loss() : losses_.front();
  }
  AuxiliaryParameters join(const model::Model&) override { return {.parameters = maps_}; }

  /// Lines for the start of a run.
  std::string line() const {
    int64_t n = 0;
    for (const auto& [decl, weight] : teacher_.weights().all()) n += decl.elements();
    std::string line = fmt::format("learns from {}, {} parameters", config_.keys().teacher, n);
    if (needs_layers()) {
      line += "; layers [teacher, student]";
      for (const LayerPair& pair : pairs_)
        line += fmt::format(" [{}, {}]", pair.teacher, pair.student);
    }
    return line;
  }

  Denominators denominators(const PackedBatch& packed) const override {
    Denominators out = own_->denominators(packed);
    for (size_t i = 0; i < terms_.size(); ++i)
      out.losses[losses_[i]] = terms_[i].of == TermOf::logits ? answered(packed) : out.tokens;
    return out;
  }

  LossSums forward_backward(const model::Model& model, const MicroBatch& micro) const override {
    const auto& [packed, batch, forward, whole, update, others] = micro;
    LossSums sums;
    for (const std::string& loss : losses_) sums[loss] = 0;
    Pass pass{model, batch, whole, sums, {}, {}, {}};
    ask_teacher(packed, forward, pass);
    if (config_.runs_student()) {
      Watch seen;
      for (const DistillationTerm& term : terms_)
        if (term.of != TermOf::logits && term.of != TermOf::mixer)
          for (const LayerPair& pair : pairs_) seen.want(place(term, model.spec(), pair.student));
      model::ForwardOptions watched = forward;
      if (seen.any()) watched.probe = seen.probe();
      PassTerms terms{.own = 1 - config_.keys().alpha};
      if (config_.has(TermOf::logits))
        terms.of_logits = [&](const Tensor& logits_NC, const Tensor& rows_N,
                              const Tensor& targets_N) {
          return of_logits(pass, logits_NC, rows_N, targets_N);
        };
      if (seen.any()) terms.after_forward = [&] { return of_layers(pass, seen, false); };
      for (const auto& [loss, sum] :
           own_->forward_backward(model, {packed, batch, watched, whole, update, &terms}))
        sums[loss] += sum;
    }
    if (config_.has(TermOf::mixer)) feed_mixers(packed, forward, pass);
    return sums;
  }

  Evaluation evaluate(const model::Model& model, const EvaluateOptions& options) const override {
    Evaluation out = own_->evaluate(model, options);
    if (reads_ != TeacherReads::same || !teacher_.has_head()) return out;
    auto known = of_teacher_.find(options.batches);
    if (known == of_teacher_.end())
      known = of_teacher_.emplace(options.batches, own_->evaluate(teacher_, options).loss).first;
    out.losses["teacher"] = known->second;
    return out;
  }

 private:
  /// Shared by forward and backward pass.
  struct Pass {
    const model::Model& model;
    const nn::Batch& batch;
    const Denominators& whole;
    LossSums& sums;
    Watch teacher;          // layer outputs
    Tensor teacher_hidden;  // input of the head
    Tensor rows_N;          // TeacherBatch::rows
  };

  /// True if a term compares layer outputs.
  bool needs_layers() const {
    return std::any_of(terms_.begin(), terms_.end(),
                       [](const DistillationTerm& term) { return term.of != TermOf::logits; });
  }

  TeacherBatch read_by_teacher(const PackedBatch& packed) const {
    if (reads_ == TeacherReads::clean) return clean_batch(packed);
    const bool whole = student_whole_ && !teacher_.spec().mask;
    const PackedBatch read = whole ? answer_batch(packed, teacher_.spec().start) : packed;
    if (reads_ == TeacherReads::joined)
      return joined_batch(read, model::CallPlan(teacher_.spec()).reads_given());
    TeacherBatch out{read, std::vector<int64_t>(packed.ids.size())};
    std::iota(out.rows.begin(), out.rows.end(), 0);
    return out;
  }

  /// Targets that the teacher predicts as well.
  double answered(const PackedBatch& packed) const {
    if (reads_ == TeacherReads::same) return static_cast<double>(packed.n_targets);
    const TeacherBatch read = read_by_teacher(packed);
    int64_t n = 0;
    for (size_t i = 0; i < read.rows.size(); ++i)
      if (packed.targets[i] >= 0 && read.rows[i] >= 0) ++n;
    return static_cast<double>(n);
  }

  void ask_teacher(const PackedBatch& packed,
                   const model::ForwardOptions& forward,
                   Pass& pass) const {
    const at::NoGradGuard frozen;
    const TeacherBatch read = read_by_teacher(packed);
    const model::ModelSpec& spec = teacher_.spec();
    for (const int64_t id : read.packed.ids)
      if (id >= spec.vocab)
        fail(ErrorKind::input, "objective.teacher",
             "token {} of the data; the teacher has a vocabulary of {}", id, spec.vocab);
    for (const DistillationTerm& term : terms_) {
      if (term.of == TermOf::logits) continue;
      for (const LayerPair& pair : pairs_) {
        pass.teacher.want(place(term, spec, pair.teacher));
        if (term.of == TermOf::mixer) pass.teacher.want(input_place(spec, pair.teacher));
      }
    }
    model::ForwardOptions options;
    options.cancel = forward.cancel;
    if (pass.teacher.any()) options.probe = pass.teacher.probe();
    if (!config_.has(TermOf::logits)) options.layers = needed(spec, &LayerPair::teacher);
    pass.teacher_hidden = hidden_of(teacher_, read.packed, batch_of(read.packed), options);
    pass.rows_N = at::tensor(read.rows, at::kLong).to(pass.teacher_hidden.device());
  }

  /// Number of layers needed for the compared outputs; 0 = all of them.
  int64_t needed(const model::ModelSpec& spec, int64_t LayerPair::*side) const {
    int64_t layers = 0;
    for (const LayerPair& pair : pairs_) layers = std::max(layers, pair.*side + 1);
    return spec.no_exit_reason(layers).empty() ? layers : 0;
  }

  /// The gradient of a chunk of the student's logits.
  Tensor of_logits(Pass& pass,
                   const Tensor& logits_NC,
                   const Tensor& rows_N,
                   const Tensor& targets_N) const {
    const Tensor at_N = pass.rows_N.index_select(0, rows_N),
                 counted_N = (targets_N >= 0).logical_and(at_N >= 0);
    Tensor teacher_NC;
    {
      const at::NoGradGuard frozen;
      teacher_NC = teacher_.logits(pass.teacher_hidden.index_select(0, at_N.clamp_min(0)))
                       .narrow(-1, 0, classes_)
                       .to(logits_NC.scalar_type());
    }
    const at::AutoGradMode record(true);
    const Tensor student_NC = logits_NC.detach().narrow(-1, 0, classes_).requires_grad_(true);
    Tensor sum = at::zeros({}, logits_NC.options());
    for (size_t i = 0; i < terms_.size(); ++i) {
      if (terms_[i].of != TermOf::logits) continue;
      const Tensor of_N = divergence(student_NC, teacher_NC, terms_[i]),
                   rows = at::where(counted_N, of_N, at::zeros({}, of_N.options()));
      pass.sums[losses_[i]] += deferred_sum(rows);
      sum = sum + rows.sum() * factor(i, pass);
    }
    const Tensor gradient = torch::autograd::grad({sum}, {student_NC})[0];
    if (classes_ == logits_NC.size(-1)) return gradient;
    return at::constant_pad_nd(gradient, {0, logits_NC.size(-1) - classes_});
  }

  double factor(size_t term, const Pass& pass) const {
    return config_.keys().alpha * terms_[term].weight / pass.whole.divisor(losses_[term]);
  }

  /// Layer terms, either of mixers with the teacher's inputs or all others: a scalar with their
  /// gradients.
  Tensor of_layers(Pass& pass, const Watch& student, bool mixers) const {
    Tensor added;
    for (size_t i = 0; i < terms_.size(); ++i) {
      const DistillationTerm& term = terms_[i];
      if (term.of == TermOf::logits || (term.of == TermOf::mixer) != mixers) continue;
      for (size_t k = 0; k < pairs_.size(); ++k) {
        const Tensor rows_N =
            compared(term, pairs_[k], pass.batch,
                     student.all(place(term, pass.model.spec(), pairs_[k].student)),
                     pass.teacher.all(place(term, teacher_.spec(), pairs_[k].teacher)));
        const auto n = static_cast<double>(pairs_.size());
        pass.sums[losses_[i]] += deferred_sum(rows_N).times(1 / n);
        const Tensor share = rows_N.sum() * (factor(i, pass) / n);
        added = added.defined() ? added + share : share;
      }
    }
    return added;
  }

  /// By token.
  Tensor compared(const DistillationTerm& term,
                  const LayerPair& pair,
                  const nn::Batch& batch,
                  const std::vector<Tensor>& student,
                  const std::vector<Tensor>& teacher) const {
    const auto as_student = [&](const Tensor& x) { return x.to(student.front().scalar_type()); };
    if (term.of == TermOf::hidden) {
      Tensor x_ND = student.front();
      if (const Tensor map = map_of(pair); map.defined())
        x_ND = ops::product(x_ND, map.to(x_ND.scalar_type()).t());
      return distance(x_ND, as_student(teacher.front()), term.distance);
    }
    if (term.of == TermOf::mixer &&
        (term.match == MixerMatch::outputs || term.match == MixerMatch::heads))
      return distance(student.front(), as_student(teacher.front()), HiddenDistance::mse);
    std::vector<Tensor> rows;
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      const nn::Segment& s = batch.segments[i];
      if (term.of == TermOf::values) {
        const auto relation = [&](const std::vector<Tensor>& x) {
          return value_relation(as_student(x.front()).narrow(0, s.begin, s.length), term.heads);
        };
        rows.push_back(weights_divergence(relation(student), relation(teacher)));
      } else {
        const Tensor its = as_student(teacher.at(i)), own = student.at(i);
        rows.push_back(term.of == TermOf::attention          ? weights_divergence(own, its)
                       : term.match == MixerMatch::frobenius ? weights_frobenius(own, its)
                                                             : weights_cross_entropy(own, its));
      }
    }
    return at::cat(rows);
  }

  Tensor map_of(const LayerPair& pair) const {
    const std::string name = fmt::format("objective.maps.{}.{}", pair.teacher, pair.student);
    for (const ParameterBeside& map : maps_)
      if (map.decl.name == name) return map.tensor;
    return {};
  }

  /// Every mixer of the student gets the input of the teacher's; no other part is trained.
  void feed_mixers(const PackedBatch& packed,
                   const model::ForwardOptions& forward,
                   Pass& pass) const {
    const model::ModelSpec& spec = pass.model.spec();
    Watch seen;
    std::map<std::string, Tensor> inputs;
    for (const LayerPair& pair : pairs_) {
      inputs[input_place(spec, pair.student)] =
          pass.teacher.one(input_place(teacher_.spec(), pair.teacher));
      for (const DistillationTerm& term : terms_)
        if (term.of == TermOf::mixer) seen.want(place(term, spec, pair.student));
    }
    model::ForwardOptions fed = forward;
    fed.probe = seen.probe();
    fed.add_statistic = nullptr;
    fed.update = nullptr;
    fed.layers = needed(spec, &LayerPair::student);
    fed.replace = [&](const std::string& name, const Tensor& x_ND) {
      const auto found = inputs.find(name);
      return found == inputs.end() ? x_ND : found->second.to(x_ND.scalar_type());
    };
    hidden_of(pass.model, packed, pass.batch, fed);
    if (const Tensor share = of_layers(pass, seen, true); share.requires_grad()) share.backward();
  }

  ObjectivePtr objective_;  // keeps the config alive
  const DistillationConfig& config_;
  std::vector<DistillationTerm> terms_;
  std::vector<std::string> losses_;  // of terms_
  model::Model teacher_;
  std::unique_ptr<Objective> own_;
  TeacherReads reads_;
  bool student_whole_;  // its decoder attends in both directions
  std::vector<LayerPair> pairs_;
  int64_t classes_;  // common to both
  std::vector<ParameterBeside> maps_;
  mutable std::map<int64_t, double> of_teacher_;  // its own loss, by number of evaluated batches
};

}  // namespace

TeacherBatch clean_batch(const PackedBatch& packed) {
  TeacherBatch out{packed, std::vector<int64_t>(packed.ids.size(), -1)};
  for (size_t i = 0; i < packed.ids.size(); ++i)
    if (packed.targets[i] >= 0) out.packed.ids[i] = packed.targets[i];
  for (const PackedDocument& piece : packed.pieces)
    for (int64_t k = 1; k < piece.length; ++k)
      out.rows[static_cast<size_t>(piece.begin + k)] = piece.begin + k - 1;
  return out;
}

PackedBatch answer_batch(const PackedBatch& packed, int64_t start) {
  PackedBatch out = packed;
  for (const PackedDocument& piece : packed.pieces)
    for (int64_t k = 0; k < piece.length; ++k) {
      const auto at = static_cast<size_t>(piece.begin + k);
      out.ids[at] = k == 0                        ? start
                    : packed.targets[at - 1] >= 0 ? packed.targets[at - 1]
                                                  : packed.ids[at - 1];
    }
  return out;
}

TeacherBatch joined_batch(const PackedBatch& packed, bool given) {
  TeacherBatch out{{}, std::vector<int64_t>(packed.ids.size(), -1)};
  out.packed.first_sample = packed.first_sample;
  for (size_t i = 0; i < packed.pieces.size(); ++i) {
    const PackedDocument& piece = packed.pieces[i];
    const std::vector<int64_t>& source = packed.sources.at(i);
    const auto begin = std::ssize(out.packed.ids), n = std::ssize(source);
    // the target without the start token
    const auto answer = packed.ids.begin() + piece.begin;
    out.packed.ids.insert(out.packed.ids.end(), source.begin(), source.end());
    out.packed.ids.insert(out.packed.ids.end(), answer + 1, answer + piece.length);
    const int64_t length = n + piece.length - 1;
    if (length == 0) continue;
    out.packed.pieces.push_back({piece.row, begin, length, given ? n : 0});
    for (int64_t k = n == 0 ? 1 : 0; k < piece.length; ++k)
      out.rows[static_cast<size_t>(piece.begin + k)] = begin + n - 1 + k;
  }
  out.packed.targets.assign(out.packed.ids.size(), -1);
  return out;
}

std::unique_ptr<Objective> distillation_objective(const ModelPlan& plan,
                                                  const ObjectivePtr& objective,
                                                  std::unique_ptr<Dataset> source,
                                                  const ObjectiveOptions& options) {
  const auto& config = dynamic_cast<const DistillationConfig&>(*objective);
  auto own = token_objective(plan, *config.inner(), std::move(source));
  const convert::Checkpoint checkpoint =
      load_without_keys(config.keys().teacher, config.keys().ignore_keys);
  auto out = std::make_unique<Distillation>(
      plan, objective, model::Model(checkpoint.spec, infer::weights_of(checkpoint)), std::move(own),
      options.device);
  if (options.say) options.say(out->line());
  return out;
}

}  // namespace tessera::train
