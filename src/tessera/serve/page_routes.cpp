// Routes of the web UI and its model data.
#include <algorithm>
#include <cmath>
#include <span>

#include "tessera/base/sha256.h"
#include "tessera/model/outline.h"
#include "tessera/serve/mixing.h"
#include "tessera/serve/page/page_files.h"
#include "tessera/serve/service_state.h"

namespace tessera::serve {
namespace {

/// The browser revalidates each time, and gets 304 if nothing has changed.
void answer_file(const ExchangePtr& exchange, const PageFile& file, const std::string& tag) {
  exchange->add_header("ETag", tag);
  exchange->add_header("Cache-Control", "no-cache");
  exchange->add_header("Content-Security-Policy", std::string(kPagePolicy));
  exchange->add_header("X-Content-Type-Options", "nosniff");
  exchange->add_header("Referrer-Policy", "no-referrer");
  exchange->add_header("Cross-Origin-Opener-Policy", "same-origin");
  if (exchange->request().header("if-none-match") == tag)
    return exchange->answer(304, file.type, "");
  exchange->answer(200, file.type, file.body);
}

Json inspection_of(const ServedModel& model) {
  constexpr int64_t kOtherwise = 8192;  // for models without a context limit
  const int64_t context = model.context();
  Json out = model::outline(model.spec(), context > 0 ? context : kOtherwise, model.kv.type);
  out["id"] = model.entry.id;
  out["capabilities"] = model.can.names();
  out["weight_bytes"] = model.bytes;
  out["spec"] = model::resolve(model.spec());
  if (model.conversation)
    out["chat_template"] = model.conversation->prompts.chat_template().source();
  const Json& config = model.loaded.source.foreign_config;
  if (model.can.classify && config.is_object() && config.contains("id2label"))
    out["labels"] = config["id2label"];
  if (model.mask) {
    const auto id = static_cast<int32_t>(*model.mask);
    out["mask"] = model.tokenizer().decode(std::span(&id, 1), false);
  }
  return out;
}

struct MixingBody {
  std::string model, content, branch;
  int64_t max_tokens = 32;
  bool weights = false;
};

const Fields<MixingBody>& mixing_fields() {
  static const Fields<MixingBody> fields = [] {
    using M = MixingBody;
    constexpr size_t kMostText = size_t{1} << 20;
    constexpr int64_t kMostTokens = 64;
    Fields<M> f;
    f.text("model", &M::model, 512,
           "which of the models of /v1/models; not needed where there is one")
        .text("content", &M::content, kMostText, "the text")
        .required()
        .text("branch", &M::branch, 256,
              "whose mixing, as /inspect/{id} lists under \"mixers\"; default: the first")
        .integer("max_tokens", &M::max_tokens, 1, kMostTokens,
                 "number of tokens, the last ones of the text")
        .flag("weights", &M::weights,
              "also what each head of attention gives each token: \"weights\", a map for each "
              "head, and none where the mixer has no such weights");
    return f;
  }();
  return fields;
}

/// Six digits are more than a map shows, at half the bytes.
Json rounded(const std::vector<std::vector<std::vector<double>>>& maps) {
  Json out = Json::array();
  for (const auto& map : maps) {
    Json rows = Json::array();
    for (const auto& row : map) {
      rows.push_back(Json::array());
      for (const double value : row) rows.back().push_back(std::round(value * 1e6) * 1e-6);
    }
    out.push_back(std::move(rows));
  }
  return out;
}

void mix(ServiceState& state,
         const ExchangePtr& exchange,
         const MixingBody& body,
         const ServedModelPtr& model) {
  const Json mixers = model::outline(model->spec(), 1)["mixers"];
  if (mixers.empty() || model->loaded.model.virtual_tokens() > 0)
    need(false, *model, "token mixing (it has no mixer)");
  const std::string name = body.branch.empty() ? mixers[0]["name"].get<std::string>() : body.branch;
  std::string type;
  for (const Json& mixer : mixers)
    if (mixer["name"] == name) type = mixer["type"];
  if (type.empty())
    refuse("branch", "branch: there is no such mixer; /inspect/" + model->entry.id + " lists them");
  std::vector<int32_t> ids = model->tokenizer().encode(body.content, {.add_special = true});
  if (ids.empty()) refuse("content", "content has no token; expected at least one");
  ids.erase(ids.begin(),
            ids.end() - std::min(std::ssize(ids), static_cast<std::ptrdiff_t>(body.max_tokens)));
  const auto map = std::make_shared<MixingMap>(model->loaded.model,
                                               std::vector<int64_t>(ids.begin(), ids.end()), name);
  ScheduledRequest job;
  job.model = model;
  job.prompt_tokens = std::ssize(ids);
  job.alive = exchange;
  job.disconnected = &exchange->disconnected();
  job.arrived = exchange->arrived();
  job.deadline = state.deadline_of(exchange, 0);
  const auto weights = std::make_shared<std::vector<std::vector<std::vector<double>>>>();
  job.work = [map, weights, asked = body.weights] {
    if (!map->step()) return false;
    if (asked) *weights = map->weights();
    return true;
  };
  job.on_end = [exchange, model, map, ids, name, type, weights, asked = body.weights](
                   std::vector<infer::Generation>, FinishStatus ending, std::exception_ptr error) {
    if (fail_unless_done(*exchange, ending, error)) return;
    Json tokens = Json::array();
    for (const int32_t id : ids)
      tokens.push_back({{"id", id}, {"text", model->tokenizer().decode(std::span(&id, 1), false)}});
    Json out{{"branch", name}, {"type", type}, {"tokens", tokens}, {"values", map->values()}};
    if (asked) out["weights"] = rounded(*weights);
    exchange->answer(out);
  };
  state.engine->submit(std::move(job));
}

}  // namespace

void ServiceState::add_page_routes() {
  for (const PageFile& file : page_files()) {
    const std::string tag = "\"" + sha256(file.body).substr(0, 32) + "\"";
    routes.add({"GET", file.path, "web UI",
                [&file, tag](const ExchangePtr& exchange, const std::string&) {
                  answer_file(exchange, file, tag);
                },
                true, true});
  }
  routes.alias("/favicon.ico");
  routes.add({"GET", "/inspect/{id}",
              "architecture of a model for the web UI: stacks, branches, shapes, parameters, FLOPs "
              "and state",
              [this](const ExchangePtr& exchange, const std::string& id) {
                with_model(exchange, id, [exchange](const ServedModelPtr& model) {
                  exchange->answer(inspection_of(*model));
                });
              }});
  routes.add(
      {"POST", "/token-mixing",
       "token mixing and attention maps: how much a layer's output at a row changes when its "
       "input at a column is replaced by the mean",
       [this](const ExchangePtr& exchange, const std::string&) {
         const auto body = std::make_shared<const MixingBody>(
             body_of(exchange, [](const Json& json, std::vector<std::string>* ignored) {
               return mixing_fields().read(json, ignored);
             }));
         with_model(exchange, body->model, [this, exchange, body](const ServedModelPtr& model) {
           mix(*this, exchange, *body, model);
         });
       },
       false, false, [] { return mixing_fields().schema(); }});
  routes.alias("/attention-maps");
}

}  // namespace tessera::serve
