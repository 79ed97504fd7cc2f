#include "tessera/model/predictor_spec.h"

#include "tessera/model/spec_reader.h"
#include "tessera/spec/fields.h"

namespace tessera::model {
namespace {

constexpr int64_t kMostPredictors = 64;

PredictorSpec read_one(const Json& json,
                       const Json& around,
                       const std::string& path,
                       const ModelSpec& of,
                       size_t index) {
  check_keys(json,
             {"reads", "token", "norm", "residual", "mixer", "depth", "ffn", "layers", "cycles",
              "n_layers", "overrides", "final_norm"},
             path);
  PredictorSpec out;
  if (const Json* reads = get(json, "reads")) {
    if (*reads != "trunk" && *reads != "previous")
      fail(ErrorKind::spec, path + ".reads", "found {}; expected \"trunk\" or \"previous\"",
           reads->dump());
    out.reads = *reads == "trunk" ? PredictorReads::trunk : PredictorReads::previous;
  }
  if (const Json* token = get(json, "token")) {
    if (!token->is_boolean())
      fail(ErrorKind::spec, path + ".token", "found {}; expected true or false",
           spec::kind_of(*token));
    out.token = token->get<bool>();
  }
  Json own = json;
  own.erase("reads");
  own.erase("token");
  for (const char* key : {"norm", "residual", "mixer", "ffn"})
    if (!own.contains(key) && around.contains(key)) own[key] = around[key];
  auto stack = std::make_shared<ModelSpec>();
  stack->arch = Arch::decoder;
  stack->stack = fmt::format("predictors.{}", index);
  stack->vocab = of.vocab;
  stack->d_model = of.d_model;
  stack->context = of.context;
  stack->init = of.init;
  read_stack(own, path, *stack);
  if (stack->width_out() != of.d_model)
    fail(ErrorKind::spec, path, "ends with {} channels; the head reads {}", stack->width_out(),
         of.d_model);
  if (const std::string reason = stack->no_state_reason();
      !reason.empty() && of.no_state_reason().empty())
    fail(ErrorKind::spec, path, "{}: it could not follow its decoder", reason);
  const Json norm = own.value("norm", Json("rms_norm"));
  if (out.token && !norm.is_null())
    out.norm = spec::read_part(Slot::norm, norm, stack->scope(0, path + ".norm"));
  out.stack = std::move(stack);
  return out;
}

}  // namespace

void read_predictors(const Json& json, ModelSpec& out) {
  const Json *list = get(json, "predictors"), *alias = get(json, "mtp");
  if (list != nullptr && alias != nullptr)
    fail(ErrorKind::spec, "predictors",
         "\"mtp\" is another name of it, and both are given; leave one of them out");
  if (list == nullptr) list = alias;
  if (list == nullptr) return;
  if (out.arch != Arch::decoder)
    fail(ErrorKind::spec, "predictors",
         "arch is \"{}\"; multi-token prediction needs a \"decoder\"", name_of(out.arch));
  if (out.width_out() != out.d_model)
    fail(ErrorKind::spec, "predictors", "the stack ends with {} channels; they read {}",
         out.width_out(), out.d_model);
  if (!list->is_array())
    fail(ErrorKind::spec, "predictors", "found {}; expected a list", spec::kind_of(*list));
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string path = fmt::format("predictors[{}]", i);
    Json one = (*list)[i];
    if (!one.is_object())
      fail(ErrorKind::spec, path, "found {}; expected an object", spec::kind_of(one));
    const int64_t repeat = read_integer(one, "repeat", 1, kMostPredictors, 1, path);
    one.erase("repeat");
    for (int64_t r = 0; r < repeat; ++r) {
      if (std::ssize(out.predictors) == kMostPredictors)
        fail(ErrorKind::spec, path, "more than {} predictors", kMostPredictors);
      out.predictors.push_back(read_one(one, json, path, out, out.predictors.size()));
    }
  }
  if (out.embed.config->state(out.scope(0)).empty()) return;
  for (const PredictorSpec& predictor : out.predictors)
    if (predictor.token)
      fail(ErrorKind::spec, "predictors",
           "embed \"{}\" continues from a state, so no token has a vector of its own; expected "
           "\"token\": false",
           out.embed.type());
}

Json resolve_predictors(const ModelSpec& spec) {
  Json list = Json::array();
  for (const PredictorSpec& predictor : spec.predictors) {
    Json json = resolve_stack(*predictor.stack);
    json.erase("embed");
    json["reads"] = predictor.reads == PredictorReads::trunk ? "trunk" : "previous";
    json["token"] = predictor.token;
    if (predictor.token) json["norm"] = spec::dump_part(predictor.norm);
    if (!list.empty()) {
      Json last = list.back();
      last.erase("repeat");
      if (last == json) {
        list.back()["repeat"] = list.back().value("repeat", 1) + 1;
        continue;
      }
    }
    list.push_back(std::move(json));
  }
  return list;
}

Json predictors_schema(const Json& stack_properties) {
  Json properties = stack_properties;
  properties.erase("embed");
  properties.erase("cross");
  properties["reads"] = {{"enum", {"trunk", "previous"}}};
  properties["token"] = {{"type", "boolean"}};
  properties["repeat"] = {{"type", "integer"}, {"minimum", 1}};
  return {{"type", "array"},
          {"items",
           {{"type", "object"},
            {"properties", properties},
            {"required", {"layers"}},
            {"additionalProperties", false}}}};
}

spec::ParamList join_parameters(const PredictorSpec& predictor) {
  const ModelSpec& stack = *predictor.stack;
  spec::ParamList list(stack.stack);
  if (!predictor.token) return list;
  const spec::Scope scope = stack.scope(0);
  if (predictor.norm)
    for (const char* name : {"token_norm", "hidden_norm"})
      predictor.norm.config->params_under(list, name, scope);
  list.linear("join", stack.d_model, 2 * stack.d_model, /*bias=*/false);
  return list;
}

}  // namespace tessera::model
