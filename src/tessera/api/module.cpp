#include "tessera/api/module.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "tessera/api/plugins.h"
#include "tessera/base/threads.h"
#include "tessera/model/branches.h"
#include "tessera/model/padding.h"
#include "tessera/model/placement.h"
#include "tessera/model/stack.h"
#include "tessera/nn/dropout.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/nn/registry.h"
#include "tessera/ops/random.h"

namespace tessera::api {
namespace {

using spec::Json;
using spec::Slot;

constexpr const char* kWhere = "nn";
constexpr int64_t kWidest = int64_t{1} << 24;

/// The slot of a part among those that are modules of their own.
ModuleKind kind_of_part(const Json& part, const std::string& slot) {
  const Json* name = &part;
  if (part.is_object() && part.contains("type")) name = &part.at("type");
  if (!name->is_string())
    fail(ErrorKind::spec, kWhere,
         "{}; expected a part (\"type\"), a stack (\"layers\") or a whole spec (\"tessera\": 1)",
         part.is_object() ? "no \"type\" with a name" : part.type_name());
  const auto type = name->get<std::string>();
  for (const auto& [kind, of] :
       {std::pair{ModuleKind::mixer, Slot::mixer}, std::pair{ModuleKind::ffn, Slot::ffn},
        std::pair{ModuleKind::norm, Slot::norm}}) {
    if (!slot.empty() && slot != name_of(kind)) continue;
    if (!slot.empty() || spec::find_mechanism(of, type) != nullptr) return kind;
  }
  if (!slot.empty())
    fail(ErrorKind::usage, kWhere,
         "slot \"{}\"; expected \"mixer\", \"ffn\" or \"norm\" (parts of other slots work within "
         "these, or in a stack)",
         slot);
  fail(
      ErrorKind::spec, kWhere,
      "type \"{}\" is no mixer, ffn or norm; expected one of them, a stack (\"layers\") or a whole "
      "spec (\"tessera\": 1)",
      type);
}

/// The spec of a stack or part, completed to one that read_model_spec() takes.
Json completed(Json json, ModuleKind kind, const ModuleScope& scope) {
  if (kind != ModuleKind::stack) {
    Json layer = {{"norm", nullptr}, {"residual", "pre_norm"}};
    // a norm alone has a layer without parameters below it, which does not run
    layer[kind == ModuleKind::mixer ? "mixer" : "ffn"] =
        kind == ModuleKind::norm ? Json({{"type", "mlp"}, {"d_hidden", 1}}) : json;
    json = {{"layers", {layer}}, {"final_norm", kind == ModuleKind::norm ? json : Json(nullptr)}};
  }
  if (!json.contains("d_model")) {
    if (scope.d_model == 0)
      fail(ErrorKind::usage, kWhere, "d_model is missing; expected the width of the input");
    if (scope.d_model < 1 || scope.d_model > kWidest)
      fail(ErrorKind::usage, kWhere, "d_model = {}; expected the width of the input, 1 to {}",
           scope.d_model, kWidest);
    json["d_model"] = scope.d_model;
  }
  json["tessera"] = 1;
  json["arch"] = scope.causal ? "decoder" : "encoder";
  json["vocab"] = 1;
  json["head"] = nullptr;
  return json;
}

/// The spec; its errors name the place in what the caller wrote, not in the layer around a part.
model::ModelSpec read_completed(const Json& json, ModuleKind kind, const ModuleScope& scope) {
  try {
    return model::read_model_spec(completed(json, kind, scope));
  } catch (const Error& error) {
    const std::string text = error.what();
    const std::string around = kind == ModuleKind::norm ? "[final_norm" : "[layers[0].";
    if (kind == ModuleKind::stack || !text.starts_with(around)) throw;
    const std::string own = kind == ModuleKind::norm
                                ? text.substr(1).replace(0, around.size() - 1, "norm")
                                : text.substr(around.size());
    const size_t end = own.find("] ");
    if (end == std::string::npos) throw;
    throw Error(error.kind(), own.substr(0, end), own.substr(end + 2));
  }
}

/// The module's name of a declared parameter; "" = not the module's.
std::string own_name(ModuleKind kind, const model::ModelSpec& spec, const std::string& name) {
  if (kind == ModuleKind::model || kind == ModuleKind::stack) return name;
  std::string prefix = "final_norm.";
  if (kind != ModuleKind::norm) {
    if (name.starts_with("shared.")) return name;
    prefix = spec.prefix(0, spec.layers[0].groups[0].branches[0]) + ".";
  }
  return name.starts_with(prefix) ? name.substr(prefix.size()) : "";
}

/// As many threads as torch's own: what torch.set_num_threads() chose.
void follow_torch_threads() {
  constexpr int kMost = 4096;
  set_thread_count(std::min(at::get_num_threads(), kMost));
}

void check_ids(const Tensor& ids_BT, const char* what, int64_t vocab) {
  if (ids_BT.dim() != 2 || ids_BT.scalar_type() != at::kLong)
    fail(ErrorKind::input, kWhere, "{}: {} [{}]; expected int64 [B,T]", what,
         c10::toString(ids_BT.scalar_type()), fmt::join(ids_BT.sizes(), ", "));
  if (vocab == 0 || ids_BT.numel() == 0) return;
  const auto [least, most] = ids_BT.aminmax();
  if (least.item<int64_t>() < 0 || most.item<int64_t>() >= vocab)
    fail(ErrorKind::input, kWhere, "{}: tokens {} to {}; expected 0 to {}", what,
         least.item<int64_t>(), most.item<int64_t>(), vocab - 1);
}

/// The tokens of a call, whose rows continue those of its state.
nn::Batch batch_of(const Tensor& ids_BT, const ModuleCall& call) {
  nn::Batch batch = model::from_padded(ids_BT, call.mask_BT);
  if (call.state == nullptr) return batch;
  if (call.state->rows() != ids_BT.size(0))
    fail(ErrorKind::input, kWhere, "{} rows of input for a state of {}", ids_BT.size(0),
         call.state->rows());
  for (nn::Segment& s : batch.segments) s.start = call.state->length(s.row);
  batch.number();
  return batch;
}

void add(std::map<std::string, Tensor>& sums, const std::string& name, const Tensor& value) {
  const auto [at, fresh] = sums.emplace(name, value);
  if (!fresh) at->second = at->second + value;
}

}  // namespace

const char* name_of(ModuleKind kind) {
  switch (kind) {
    case ModuleKind::model:
      return "model";
    case ModuleKind::stack:
      return "stack";
    case ModuleKind::mixer:
      return "mixer";
    case ModuleKind::ffn:
      return "ffn";
    case ModuleKind::norm:
      return "norm";
  }
  return "";
}

ModuleSpec ModuleSpec::read(const Json& json, const ModuleScope& scope) {
  load_plugins_of_environment();
  nn::register_mechanisms();
  ModuleSpec out;
  const bool object = json.is_object();
  if (object && json.contains("tessera")) {
    out.spec = model::read_model_spec(json);
  } else {
    out.kind =
        object && json.contains("layers") ? ModuleKind::stack : kind_of_part(json, scope.slot);
    out.spec = read_completed(json, out.kind, scope);
    out.spec.embed = {};
    if (out.spec.ids_before() > 0)
      fail(ErrorKind::usage, kWhere,
           "a part reads the {} ids before a token; expected it in a whole spec (\"tessera\": 1)",
           out.spec.ids_before());
  }
  if (scope.d_model != 0 && scope.d_model != out.spec.d_model)
    fail(ErrorKind::usage, kWhere, "d_model = {}; the spec has d_model = {}", scope.d_model,
         out.spec.d_model);
  for (const spec::ParamDecl& decl : model::parameters(out.spec))
    if (std::string name = own_name(out.kind, out.spec, decl.name); !name.empty())
      out.parameters.emplace_back(std::move(name), decl);
  return out;
}

std::vector<Tensor> ModuleSpec::initial(uint64_t seed, at::ScalarType type) const {
  std::vector<Tensor> out;
  const RandomKey key = RandomKey(seed).fold("init");
  for (const auto& [name, decl] : parameters) out.push_back(ops::initial_values(decl, key, type));
  return out;
}

/// The weights of a stack or part, and what is built on them.
struct Module::Parts {
  model::ModelSpec spec;
  std::map<std::string, nn::WeightPtr> weights = {};
  std::unique_ptr<model::Stack> stack = {};
  std::unique_ptr<nn::Mixer> mixer = {};
  std::unique_ptr<nn::Ffn> ffn = {};
  std::unique_ptr<nn::Norm> norm = {};
  bool mixer_has_state = false;

  ops::ProductSettings products() const { return {.whole_texts = !spec.causal()}; }
  void build(ModuleKind kind) {
    const auto source = [this](const std::string& name) -> nn::WeightPtr {
      const auto found = weights.find(name);
      return found == weights.end() ? nullptr : found->second;
    };
    if (kind == ModuleKind::stack) {
      stack = std::make_unique<model::Stack>(spec, source, products());
      return;
    }
    const nn::Builder root(source, "", spec.scope(0));
    if (kind == ModuleKind::norm) {
      norm = nn::build_norm(spec.final_norm, root.under("final_norm", spec.scope_out()));
      return;
    }
    const model::BranchSpec& branch = spec.layers[0].groups[0].branches[0];
    const nn::Builder here =
        model::part_builder(spec, 0, branch, root.under(spec.prefix(0), spec.scope(0)));
    if (kind == ModuleKind::ffn) {
      ffn = nn::build_ffn(branch.part, here);
    } else {
      mixer = nn::build_mixer(branch.part, here);
      mixer_has_state = !branch.part.config->state(here.scope()).empty();
    }
  }

  Tensor forward(const Tensor& x_ND, nn::Context& context) const {
    if (stack) return stack->forward(x_ND, context);
    if (norm) return norm->forward(x_ND, context);
    if (ffn) return ffn->forward(x_ND, context);
    if (context.call.state == nullptr || !mixer_has_state)
      return nn::run_mixer(*mixer, x_ND, context, nullptr);
    const nn::StateRows rows = context.call.state->branch(0, *context.batch);
    return nn::run_mixer(*mixer, x_ND, context, &rows);
  }
};

Module::Module(const ModuleSpec& spec, const std::vector<Tensor>& values) : kind_(spec.kind) {
  if (values.size() != spec.parameters.size())
    fail(ErrorKind::input, kWhere, "{} tensors for {} parameters", values.size(),
         spec.parameters.size());
  std::map<std::string, nn::WeightPtr> weights;
  for (size_t i = 0; i < values.size(); ++i) {
    const auto& [name, decl] = spec.parameters[i];
    if (values[i].sizes() != at::IntArrayRef(decl.shape))
      fail(ErrorKind::input, kWhere, "{} has shape [{}]; the spec wants [{}]", name,
           fmt::join(values[i].sizes(), ", "), fmt::join(decl.shape, ", "));
    if (values[i].scalar_type() == at::kDouble) type_ = at::kDouble;
    device_ = values[i].device();
    weights[decl.name] =
        std::make_shared<const ops::Weight>(ops::Weight::dense(decl.name, values[i]));
  }
  if (kind_ == ModuleKind::model) {
    own_ = std::make_unique<const model::Model>(
        spec.spec, model::Weights::check(spec.spec, std::move(weights)));
    model_ = own_.get();
  } else {
    auto parts = std::make_unique<Parts>(Parts{spec.spec, std::move(weights)});
    parts->build(kind_);
    parts_ = std::move(parts);
  }
  set_no_rows();
}

Module::Module(const model::Model& model) : device_(model::device_of(model)), model_(&model) {
  set_no_rows();
}
void Module::set_no_rows() {
  if (spec().no_state_reason().empty())
    no_rows_ = model::State(spec(), 0, 0, at::TensorOptions(device_).dtype(type_));
}
Module::~Module() = default;

const model::ModelSpec& Module::spec() const {
  return model_ != nullptr ? model_->spec() : parts_->spec;
}

model::State Module::state(int64_t rows) const {
  constexpr int64_t kMostRows = int64_t{1} << 20;
  if (rows < 1 || rows > kMostRows)
    fail(ErrorKind::usage, kWhere, "a state of {} rows; expected 1 to {}", rows, kMostRows);
  if (const std::string reason = spec().no_state_reason(); !reason.empty())
    fail(ErrorKind::usage, kWhere, "no state: {}", reason);
  return model::State(spec(), rows, 0, at::TensorOptions(device_).dtype(type_));
}

void Module::check(const model::State& state) const {
  try {
    no_rows_.fork().append(state.select({}));
  } catch (const Error&) {
    fail(ErrorKind::input, kWhere,
         "the state is of another spec; expected one of this module's state()");
  }
}

Tensor Module::run(const nn::Batch& batch,
                   const Tensor& x_ND,
                   const ModuleCall& call,
                   ModuleResult& result) const {
  nn::Context context;
  context.batch = &batch;
  context.causal = parts_->spec.causal();
  context.training = call.training;
  context.key = RandomKey(call.seed);
  context.step = call.step;
  context.call.state = call.state;
  if (call.training) {
    context.add_loss = [&](const std::string& name, const Tensor& loss) {
      add(result.losses, name, loss);
    };
    context.add_statistic = [&](const std::string& name, const Tensor& value) {
      add(result.statistics, name, value);
    };
  }
  if (call.state != nullptr) {
    call.state->check(batch);
    context.lasting = &call.state->lasting();
  }
  context.products = parts_->products();
  context.products.drop = nn::input_drop(context, batch);
  Tensor y_ND;
  try {
    y_ND = parts_->forward(x_ND, context);
  } catch (...) {
    if (call.state != nullptr) call.state->invalidate(batch);
    throw;
  }
  if (call.state != nullptr) call.state->advance(batch);
  return y_ND;
}

Tensor Module::run_model(const nn::Batch& batch,
                         const ModuleCall& call,
                         ModuleResult& result) const {
  model::ForwardOptions options;
  options.state = call.state;
  options.training = call.training;
  options.key = RandomKey(call.seed);
  options.step = call.step;
  if (call.training) {
    options.add_loss = [&](const std::string& name, const Tensor& loss) {
      add(result.losses, name, loss);
    };
    options.add_statistic = [&](const std::string& name, const Tensor& value) {
      add(result.statistics, name, value);
    };
  }
  nn::Encoded encoded;
  if (call.source_BS.defined()) {
    check_ids(call.source_BS, "source", (spec().encoder ? *spec().encoder : spec()).vocab);
    model::ForwardOptions of_source = options;
    of_source.state = nullptr;
    encoded = model_->encode(model::from_padded(call.source_BS, call.source_mask_BS), of_source);
    options.encoded = &encoded;
  }
  const Tensor h_ND = model_->hidden(batch, options);
  if (call.hidden || !spec().head) return h_ND;
  return model_->logits(of_documents() ? model_->pooled(h_ND, batch) : h_ND);
}

bool Module::of_documents() const {
  return model_ != nullptr && spec().head &&
         spec().head.as<nn::HeadConfig>().reads() == nn::HeadInput::pooled;
}

ModuleResult Module::forward(const ModuleCall& call) const {
  follow_torch_threads();
  ModuleResult result;
  Tensor ids_BT = call.input;
  const Tensor& x = call.input;
  if (model_ != nullptr) {
    check_ids(x, "input", spec().vocab);
  } else {
    if (x.dim() != 3 || x.size(2) != spec().d_model || !x.is_floating_point())
      fail(ErrorKind::input, kWhere, "input: {} [{}]; expected float [B,T,{}]",
           c10::toString(x.scalar_type()), fmt::join(x.sizes(), ", "), spec().d_model);
    ids_BT = call.ids_BT.defined() ? call.ids_BT : at::zeros({x.size(0), x.size(1)}, at::kLong);
    check_ids(ids_BT, "ids", 0);
    if (ids_BT.size(0) != x.size(0) || ids_BT.size(1) != x.size(1))
      fail(ErrorKind::input, kWhere, "ids: [{}]; expected [{}, {}] as x",
           fmt::join(ids_BT.sizes(), ", "), x.size(0), x.size(1));
  }
  if (ids_BT.numel() == 0)
    fail(ErrorKind::input, kWhere, "the input is empty; expected at least one token");
  if (call.state != nullptr) check(*call.state);
  nn::Batch batch = batch_of(ids_BT, call);
  const auto n = static_cast<double>(batch.n_tokens());
  Tensor y_N;
  if (model_ != nullptr) {
    y_N = run_model(batch, call, result);
  } else {
    // parts that read ids fail without them instead of reading zeros
    if (!call.ids_BT.defined()) batch.ids_N = Tensor();
    const Tensor x_ND = x.reshape({-1, x.size(2)});
    y_N = run(batch,
              call.mask_BT.defined()
                  ? x_ND.index_select(0, call.mask_BT.reshape(-1).nonzero().reshape(-1))
                  : x_ND,
              call, result);
  }
  for (auto& [name, loss] : result.losses) loss = loss / n;
  if (of_documents() && !call.hidden)
    result.output = y_N;
  else if (call.mask_BT.defined())
    result.output = model::to_padded(y_N, ids_BT, call.mask_BT);
  else
    result.output = y_N.view({ids_BT.size(0), ids_BT.size(1), -1});
  return result;
}

}  // namespace tessera::api
