// The classes torch.classes.tessera.Module and .State of a Python that has loaded libtessera.so:
// the modules of module.h on torch's own tensors, which pass without a copy and with their
// gradients. `tessera.nn` wraps them. They are registered in libtorch when the library is loaded,
// so that no header of Python is needed and one library serves every Python.
//
// An error is a RuntimeError "<kind>|[where] what", kind as tessera_code in the C interface.
#include <torch/custom_class.h>

#include <set>

#include "tessera/api/loaded_access.h"
#include "tessera/api/module.h"
#include "tessera/model/outline.h"
#include "tessera/model/plan.h"

namespace tessera::api {
namespace {

using Optional = std::optional<Tensor>;

/// The result of `call`; errors of the library carry their kind.
template <class Call>
auto coded(const Call& call) {
  try {
    return call();
  } catch (const Error& error) {
    // tessera_code: TESSERA_OK comes before the kinds
    throw std::runtime_error(
        fmt::format("{}|{}", static_cast<int>(error.kind()) + 1, error.what()));
  }
}

Tensor or_none(const Optional& tensor) {
  return tensor ? *tensor : Tensor();
}

class TorchState final : public torch::CustomClassHolder {
 public:
  TorchState(model::State state, std::vector<model::BranchState> layout)
      : state_(std::move(state)), layout_(std::move(layout)) {}

  model::State& state() { return state_; }
  int64_t rows() const { return state_.rows(); }
  int64_t bytes() const { return state_.bytes(); }
  int64_t length(int64_t row) const { return state_.length(checked(row)); }
  void detach() { state_.detach(); }
  c10::intrusive_ptr<TorchState> select(const std::vector<int64_t>& rows) const {
    for (const int64_t row : rows) checked(row);
    return c10::make_intrusive<TorchState>(state_.select(rows), layout_);
  }

  /// What a row keeps, by name ("layers.0.mixer.ssm"), where it lies: a tensor of fixed size, or
  /// the pages of entries per token.
  c10::Dict<std::string, std::vector<Tensor>> tensors(int64_t row) {
    c10::Dict<std::string, std::vector<Tensor>> out;
    nn::Batch batch;
    batch.segments = {{.row = checked(row)}};
    for (size_t b = 0; b < layout_.size(); ++b) {
      nn::RowState& held = *state_.branch(b, batch).front();
      held.begin_call(false);  // nothing goes back to what is changed here
      for (size_t i = 0; i < layout_[b].tensors.size(); ++i) {
        const spec::StateDecl& decl = layout_[b].tensors[i];
        const std::string name = layout_[b].name + "." + decl.name;
        if (decl.kind == spec::StateDecl::Kind::fixed) {
          out.insert(name, std::vector<Tensor>{held.fixed_in_place(i)});
        } else {
          const nn::TokenBuffer& entries = held.tokens(i);
          out.insert(name, entries.spans(entries.first(), entries.length()));
        }
      }
    }
    return out;
  }

 private:
  int64_t checked(int64_t row) const {
    if (row < 0 || row >= rows())
      fail(ErrorKind::input, "nn", "row {} of a state of {} rows", row, rows());
    return row;
  }
  model::State state_;
  std::vector<model::BranchState> layout_;
};

using StatePtr = c10::intrusive_ptr<TorchState>;
using Named = c10::Dict<std::string, Tensor>;

Named named(const std::map<std::string, Tensor>& tensors) {
  Named out;
  for (const auto& [name, tensor] : tensors) out.insert(name, tensor);
  return out;
}

class TorchModule final : public torch::CustomClassHolder {
 public:
  /// A spec, the slot of a part, the width of the input, and whether it is causal.
  TorchModule(const std::string& json, const std::string& slot, int64_t d_model, bool causal)
      : spec_(std::make_unique<ModuleSpec>(ModuleSpec::read(
            spec::parse_json(json, "spec", {.comments = true}), {slot, d_model, causal}))) {}
  /// A loaded model, by the address of its handle in C, which must outlive this.
  explicit TorchModule(int64_t handle)
      : loaded_(&reinterpret_cast<const tessera_model*>(handle)->model),
        module_(std::make_shared<Module>(LoadedAccess::model(*loaded_))) {}

  /// JSON: kind, d_model, parameters [{name, trainable, decays}], state (names of fixed tensors).
  std::string describe() const {
    const model::ModelSpec& spec = spec_ ? spec_->spec : module_->spec();
    spec::Json parameters = spec::Json::array();
    if (spec_)
      for (const auto& [name, decl] : spec_->parameters)
        parameters.push_back(
            {{"name", name}, {"trainable", decl.trainable}, {"decays", decl.decays()}});
    spec::Json fixed = spec::Json::array();
    for (const model::BranchState& branch : layout(spec))
      for (const spec::StateDecl& decl : branch.tensors)
        if (decl.kind == spec::StateDecl::Kind::fixed)
          fixed.push_back(branch.name + "." + decl.name);
    return spec::Json{{"kind", spec_ ? name_of(spec_->kind) : "model"},
                      {"d_model", spec.d_model},
                      {"parameters", parameters},
                      {"fixed", fixed}}
        .dump();
  }
  /// The layers, as JSON for diagrams (model/outline.h).
  std::string outline() const {
    const model::ModelSpec& spec = spec_ ? spec_->spec : module_->spec();
    return model::outline(spec, model::usual_context(spec)).dump();
  }
  std::vector<Tensor> initial(int64_t seed, bool as_double) const {
    return spec_->initial(static_cast<uint64_t>(seed), as_double ? at::kDouble : at::kFloat);
  }
  /// Computes from now on with these tensors, in the order of describe()'s parameters.
  void bind(const std::vector<Tensor>& values) {
    module_ = std::make_shared<Module>(*spec_, values);
    values_ = values;
  }
  StatePtr state(int64_t rows) const {
    return c10::make_intrusive<TorchState>(module_->state(rows), layout(module_->spec()));
  }
  std::tuple<Tensor, Named, Named> forward(const Tensor& input,
                                           const Optional& mask,
                                           const Optional& ids,
                                           const Optional& source,
                                           const Optional& source_mask,
                                           const std::optional<StatePtr>& state,
                                           bool training,
                                           bool hidden,
                                           int64_t seed,
                                           int64_t step) const {
    std::unique_lock<std::mutex> lock;
    std::optional<at::NoGradGuard> frozen;
    if (loaded_ != nullptr) {
      lock = std::unique_lock(LoadedAccess::mutex(*loaded_));
      frozen.emplace();
    }
    const std::shared_ptr<const Module> module = module_;
    const ModuleResult result = module->forward({.input = input,
                                                 .mask_BT = or_none(mask),
                                                 .ids_BT = or_none(ids),
                                                 .source_BS = or_none(source),
                                                 .source_mask_BS = or_none(source_mask),
                                                 .state = state ? &(*state)->state() : nullptr,
                                                 .training = training,
                                                 .hidden = hidden,
                                                 .seed = static_cast<uint64_t>(seed),
                                                 .step = step});
    return {result.output, named(result.losses), named(result.statistics)};
  }
  /// Moves parameters that follow counts instead of gradients (biases of a router's balance), by
  /// the statistics of all calls of an update.
  void follow_rules(const Named& statistics) const {
    const at::NoGradGuard no_graph;
    for (size_t i = 0; i < values_.size(); ++i) {
      const spec::ParamDecl& decl = spec_->parameters[i].second;
      if (!decl.rule) continue;
      const auto found = statistics.find(decl.rule.statistic);
      if (found == statistics.end()) continue;
      const Tensor counts = found->value().to(at::kCPU, at::kDouble).contiguous();
      Tensor moved = values_[i].to(at::kCPU, at::kFloat).contiguous();
      decl.rule.apply({moved.mutable_data_ptr<float>(), static_cast<size_t>(moved.numel())},
                      {counts.const_data_ptr<double>(), static_cast<size_t>(counts.numel())});
      Tensor(values_[i]).copy_(moved);
    }
  }

 private:
  static std::vector<model::BranchState> layout(const model::ModelSpec& spec) {
    return spec.no_state_reason().empty() ? model::state_layout(spec)
                                          : std::vector<model::BranchState>();
  }
  std::unique_ptr<const ModuleSpec> spec_;
  const tessera::Model* loaded_ = nullptr;
  std::shared_ptr<const Module> module_;
  std::vector<Tensor> values_;
};

using ModulePtr = c10::intrusive_ptr<TorchModule>;

const auto state_class =
    torch::class_<TorchState>("tessera", "State")
        .def("rows", [](const StatePtr& s) { return s->rows(); })
        .def("bytes", [](const StatePtr& s) { return s->bytes(); })
        .def("length",
             [](const StatePtr& s, int64_t row) { return coded([&] { return s->length(row); }); })
        .def("detach", [](const StatePtr& s) { s->detach(); })
        .def("select",
             [](const StatePtr& s, const std::vector<int64_t>& rows) {
               return coded([&] { return s->select(rows); });
             })
        .def("tensors",
             [](const StatePtr& s, int64_t row) { return coded([&] { return s->tensors(row); }); });

const auto module_class =
    torch::class_<TorchModule>("tessera", "Module")
        .def_static(
            "read",
            [](const std::string& json, const std::string& slot, int64_t d_model, bool causal) {
              return coded(
                  [&] { return c10::make_intrusive<TorchModule>(json, slot, d_model, causal); });
            })
        .def_static("of_loaded",
                    [](int64_t handle) {
                      return coded([&] { return c10::make_intrusive<TorchModule>(handle); });
                    })
        .def("describe", [](const ModulePtr& m) { return coded([&] { return m->describe(); }); })
        .def("outline", [](const ModulePtr& m) { return coded([&] { return m->outline(); }); })
        .def("initial",
             [](const ModulePtr& m, int64_t seed, bool as_double) {
               return coded([&] { return m->initial(seed, as_double); });
             })
        .def("bind",
             [](const ModulePtr& m, const std::vector<Tensor>& values) {
               coded([&] { return m->bind(values), 0; });
             })
        .def("state",
             [](const ModulePtr& m, int64_t rows) { return coded([&] { return m->state(rows); }); })
        .def("follow_rules",
             [](const ModulePtr& m, const Named& statistics) {
               coded([&] { return m->follow_rules(statistics), 0; });
             })
        .def("forward",
             [](const ModulePtr& m,
                const Tensor& input,
                const Optional& mask,
                const Optional& ids,
                const Optional& source,
                const Optional& source_mask,
                const std::optional<StatePtr>& state,
                bool training,
                bool hidden,
                int64_t seed,
                int64_t step) {
               return coded([&] {
                 return m->forward(input, mask, ids, source, source_mask, state, training, hidden,
                                   seed, step);
               });
             });

}  // namespace
}  // namespace tessera::api
