// Routes for the list of models, loaded models and running requests.
#include "tessera/model/plan.h"
#include "tessera/serve/service_state.h"

namespace tessera::serve {
namespace {

Json json_of(const ModelEntry& entry, const ServedModelPtr& loaded, int64_t created) {
  Json out = {{"id", entry.id}, {"object", "model"}, {"created", created}, {"owned_by", "tessera"}};
  if (!entry.of.empty()) out["parent"] = entry.of;
  out["loaded"] = loaded != nullptr;
  if (!loaded) return out;
  out["capabilities"] = loaded->can.names();
  out["meta"] = {{"n_ctx", loaded->context()},
                 {"n_vocab", loaded->spec().vocab},
                 {"n_params", loaded->parameters},
                 {"size", loaded->bytes}};
  return out;
}

/// Default sampling options.
Json defaults_of(const ServedModel& model, const ServiceOptions& options) {
  const infer::DecodingDefaults defaults = model.decoding(options.generation_config);
  const infer::SamplingOptions& o = defaults.sampling;
  Json out = Json::object();
  for (const infer::DecodingField& field : infer::sampling_fields())
    if (const double value = field.get(o); field.whole())
      out[field.name] = static_cast<int64_t>(value);
    else
      out[field.name] = value;
  out["dry_sequence_breakers"] = o.dry_sequence_breakers;
  out["samplers"] = Json::array();
  for (const infer::Sampler sampler : o.samplers)
    out["samplers"].push_back(infer::sampler_names()[static_cast<size_t>(sampler)]);
  out["source"] = defaults.source.empty() ? "server" : defaults.source;
  // limited by the context
  const int64_t most = defaults.max_new_tokens.value_or(options.max_tokens);
  out["max_tokens"] = model.longest > 0 ? std::min(most, model.longest) : most;
  out["stop_token_ids"] = model.conversation ? model.conversation->ends : model.ends;
  return out;
}

Json json_of(const Limits& limits) {
  const auto seconds = [](std::chrono::milliseconds time) {
    return static_cast<double>(time.count()) * 1e-3;
  };
  return {{"head_bytes", limits.head_bytes},
          {"body_bytes", limits.body_bytes},
          {"json_depth", limits.json_depth},
          {"connections", limits.connections},
          {"waiting_requests", limits.waiting_requests},
          {"waiting_tokens", limits.waiting_tokens},
          {"deadline_seconds", seconds(limits.deadline)},
          {"idle_seconds", seconds(limits.idle_time)},
          {"write_seconds", seconds(limits.write_time)}};
}

struct ModelBody {
  std::string model;
};

const Fields<ModelBody>& model_fields() {
  static const Fields<ModelBody> fields = [] {
    Fields<ModelBody> f;
    f.text("model", &ModelBody::model, 512, "which of the models of /v1/models").required();
    return f;
  }();
  return fields;
}

}  // namespace

void ServiceState::add_model_routes() {
  routes.add({"GET", "/v1/models", "list of models",
              [this](const ExchangePtr& exchange, const std::string&) {
                Json all = Json::array();
                for (const ModelEntry& entry : pool->entries())
                  all.push_back(json_of(entry, pool->loaded(entry.id), created));
                exchange->answer(Json{{"object", "list"}, {"data", all}});
              },
              false, true});
  routes.alias("/models");
  routes.add({"GET", "/v1/models/{id}", "one model",
              [this](const ExchangePtr& exchange, const std::string& id) {
                exchange->answer(json_of(pool->entry(id), pool->loaded(id), created));
              },
              false, true});
  routes.add({"GET", "/props", "specs, costs and limits of loaded models",
              [this](const ExchangePtr& exchange, const std::string&) {
                Json all = Json::array();
                for (const ModelEntry& entry : pool->entries()) {
                  const ServedModelPtr model = pool->loaded(entry.id);
                  Json one = json_of(entry, model, created);
                  if (model) {
                    one["spec"] = model::resolve(model->spec());
                    one["plan"] = model::to_json(model::make_plan(
                        model->spec(), std::max<int64_t>(1, model->context()), -1, model->kv.type));
                    one["kv_type"] = spec::name_of(model->kv.type);
                    one["guesses"] = model->speculation.on();
                    if (!model->speculation_unavailable.empty())
                      one["no_guesses"] = one["speculation_unavailable"] =
                          model->speculation_unavailable;
                    one["system_fingerprint"] = model->fingerprint;
                    one["fill_in_the_middle"] = model->fim.has_value();
                    one["default_generation_settings"] = defaults_of(*model, options);
                    if (model->conversation)
                      one["chat_template"] = model->conversation->prompts.chat_template().source();
                  }
                  all.push_back(std::move(one));
                }
                exchange->answer(Json{{"models", all},
                                      {"parallel", options.engine.parallel},
                                      {"state_bytes", options.engine.state_bytes},
                                      {"priorities", options.engine.priorities},
                                      {"retrieve", asker != nullptr},
                                      {"limits", json_of(options.server.limits)}});
              }});
  routes.add({"GET", "/requests",
              "running and queued requests: model, client, priority, token counts, sequences; no "
              "content",
              [this](const ExchangePtr& exchange, const std::string&) {
                exchange->answer(Json{{"running", engine->view()}, {"waiting", engine->waiting()}});
              },
              false, true});
  const auto add = [this](const char* path, const char* doc, bool load) {
    routes.add({"POST", path, doc,
                [this, load](const ExchangePtr& exchange, const std::string&) {
                  const auto body =
                      body_of(exchange, [](const Json& json, std::vector<std::string>* ignored) {
                        return model_fields().read(json, ignored);
                      });
                  const auto said = [this, exchange](const ModelEntry& entry) {
                    exchange->answer(json_of(entry, pool->loaded(entry.id), created));
                  };
                  if (load)
                    return with_model(exchange, body.model,
                                      [said](const ServedModelPtr& model) { said(model->entry); });
                  const ModelEntry& entry = pool->entry(body.model);
                  pool->unload(entry);
                  said(entry);
                },
                false, false, [] { return model_fields().schema(); }});
  };
  add("/models/load", "loads a model", true);
  add("/models/unload", "unloads a model; the next request loads it again", false);
}

}  // namespace tessera::serve
