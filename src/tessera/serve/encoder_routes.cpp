// Embeddings, reranking, classification and fill-mask. The scheduler's thread computes them in
// pieces, between the steps of generation.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/base64.h"
#include "tessera/base/ranking.h"
#include "tessera/infer/encoders/classify.h"
#include "tessera/nn/head/classifier.h"
#include "tessera/serve/service_state.h"
#include "tessera/text/tokenizer/token_spans.h"

namespace tessera::serve {
namespace {

using Rows = std::vector<std::vector<int64_t>>;

constexpr int64_t kTokensAPiece = 1024;

/// Rows of a request, computed in pieces.
struct Reading {
  ExchangePtr exchange;
  ServedModelPtr model;
  Rows rows;
  std::vector<text::ClassifierInput> judged = {};  // the rows as classifier inputs
  size_t together = 1;                             // rows of an example, in one piece
  size_t next = 0;
  std::vector<Tensor> parts = {};

  int64_t tokens() const {
    int64_t n = 0;
    for (const auto& row : rows) n += infer::size_of(row);
    return n;
  }
};

/// `compute` processes some rows, the first of which is number `first`; `answer` sends the
/// response.
void read_rows(ServiceState& state,
               const std::shared_ptr<Reading>& reading,
               std::function<Tensor(const Rows& rows, size_t first)> compute,
               std::function<Json(const Reading& reading)> answer) {
  const int64_t context = reading->model->context();
  for (const auto& row : reading->rows) {
    if (row.empty()) refuse("input", "input has an empty text; expected at least one token");
    if (context > 0 && infer::size_of(row) > context)
      refuse("input",
             fmt::format("a text has {} tokens; this model's context is {}", row.size(), context),
             "context_length_exceeded");
    for (const int64_t id : row)
      if (id >= reading->model->spec().vocab)
        refuse("input", fmt::format("input holds token {}; expected 0 to {}", id,
                                    reading->model->spec().vocab - 1));
  }
  ScheduledRequest job = state.job_of(reading->exchange, reading->model);
  job.prompt_tokens = reading->tokens();
  job.work = [reading, compute = std::move(compute)] {
    const at::NoGradGuard no_gradients;
    Rows piece;
    const size_t first = reading->next;
    for (int64_t tokens = 0; reading->next < reading->rows.size() && tokens < kTokensAPiece;)
      for (size_t i = 0; i < reading->together; ++i, ++reading->next) {
        piece.push_back(reading->rows[reading->next]);
        tokens += infer::size_of(piece.back());
      }
    reading->parts.push_back(compute(piece, first));
    return reading->next == reading->rows.size();
  };
  job.on_end = [reading, answer = std::move(answer)](
                   std::vector<infer::Generation>, FinishStatus ending, std::exception_ptr error) {
    Exchange& exchange = *reading->exchange;
    exchange.count({.prompt_tokens = reading->tokens(),
                    .model = reading->model->entry.id,
                    .finish = ending == FinishStatus::done ? "stop" : "error"});
    if (fail_unless_done(exchange, ending, error)) return;
    try {
      exchange.answer(answer(*reading));
    } catch (...) {
      exchange.fail(api_error_of(std::current_exception()));
    }
  };
  state.engine->submit(std::move(job));
}

Json usage_of(const Reading& reading) {
  return {{"prompt_tokens", reading.tokens()}, {"total_tokens", reading.tokens()}};
}

/// Texts tokenized for a sentence model. A text that is too long is an error, not truncated.
Rows rows_of(const ServedModel& model, const std::vector<std::string>& texts, int64_t& skipped) {
  const infer::EmbedTokens read = infer::embed_tokens(model.loaded, texts, model.embedding);
  if (read.cut > 0)
    refuse("input",
           fmt::format("{} of {} texts are longer than the model's maximum length", read.cut,
                       texts.size()),
           "context_length_exceeded");
  skipped = read.skipped;
  return read.rows;
}

void embed(ServiceState& state,
           const ExchangePtr& exchange,
           const EmbeddingsBody& body,
           const ServedModelPtr& model) {
  need(model->can.embedding, *model,
       model->spec().causal() ? "embeddings (start the server with --pooling)" : "embeddings");
  infer::EmbedOptions options = model->embedding;
  options.renormalize = true;
  const int64_t width = infer::embedding_width(model->spec(), options);
  if (body.dimensions && *body.dimensions > width)
    refuse("dimensions",
           fmt::format("dimensions is {}; this model's vectors have {}", *body.dimensions, width));
  if (body.dimensions) options.dimensions = *body.dimensions;
  const auto reading = std::make_shared<Reading>(Reading{exchange, model, {}});
  int64_t skipped = 0;
  for (const Prompt& prompt : body.input)
    reading->rows.push_back(prompt.ids ? *prompt.ids
                                       : rows_of(*model, {prompt.text}, skipped).at(0));
  if (skipped > 0 && std::any_of(body.input.begin(), body.input.end(),
                                 [](const Prompt& prompt) { return prompt.ids.has_value(); }))
    refuse("input", "this model puts a prompt before its texts, which token ids are without",
           "unsupported_parameter");
  read_rows(
      state, reading,
      [model, skipped, options](const Rows& rows, size_t) {
        return infer::embed_rows(model->loaded, rows, options, skipped);
      },
      [base64 = body.base64](const Reading& done) {
        const Tensor vectors_RD = at::cat(done.parts).contiguous();
        const auto width = static_cast<size_t>(vectors_RD.size(1));
        Json data = Json::array();
        for (int64_t r = 0; r < vectors_RD.size(0); ++r) {
          const float* const v = vectors_RD.const_data_ptr<float>() + r * vectors_RD.size(1);
          Json embedding =
              base64
                  ? Json(tessera::base64({reinterpret_cast<const char*>(v), width * sizeof(float)}))
                  : Json(std::vector<float>(v, v + width));
          data.push_back(
              {{"object", "embedding"}, {"index", r}, {"embedding", std::move(embedding)}});
        }
        return Json{{"object", "list"},
                    {"data", std::move(data)},
                    {"model", done.model->entry.id},
                    {"usage", usage_of(done)}};
      });
}

/// Documents by descending score.
Json ranks_json(const Reading& done,
                const RerankBody& body,
                const char* method,
                const Tensor& scores_R) {
  const double* const scores = scores_R.const_data_ptr<double>();
  std::vector<size_t> order(body.documents.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return scores[a] > scores[b]; });
  if (body.top_n > 0 && static_cast<size_t>(body.top_n) < order.size())
    order.resize(static_cast<size_t>(body.top_n));
  Json results = Json::array();
  for (const size_t i : order) {
    Json result = {{"index", i}, {"relevance_score", scores[i]}};
    if (body.return_documents) result["document"] = {{"text", body.documents[i]}};
    results.push_back(std::move(result));
  }
  return {{"id", fresh_id("rerank")},
          {"model", done.model->entry.id},
          {"method", method},
          {"results", std::move(results)},
          {"usage", usage_of(done)}};
}

/// Texts and pairs tokenized for a classifier.
void judge(Reading& reading, const std::vector<TextOrPair>& texts) {
  const bool compares = infer::compares_documents(reading.model->spec());
  reading.together = compares ? 2 : 1;
  for (size_t i = 0; i < texts.size(); ++i) {
    const TextOrPair& one = texts[i];
    if (compares && !one.second)
      refuse(fmt::format("input[{}]", i),
             "this model compares two documents; expected a pair, [text, text]");
    for (text::ClassifierInput& input : infer::classifier_inputs(
             reading.model->loaded, one.text,
             one.second ? std::optional<std::string_view>(*one.second) : std::nullopt, 0)) {
      reading.rows.push_back(input.ids);
      reading.judged.push_back(std::move(input));
    }
  }
}

/// Logits of a piece of the rows.
std::function<Tensor(const Rows&, size_t)> judging(const std::shared_ptr<Reading>& reading) {
  return [reading](const Rows& rows, size_t first) {
    const auto begin = reading->judged.begin() + static_cast<std::ptrdiff_t>(first);
    return infer::classifier_logits(
        reading->model->loaded,
        std::vector(begin, begin + static_cast<std::ptrdiff_t>(rows.size())));
  };
}

void rerank(ServiceState& state,
            const ExchangePtr& exchange,
            const RerankBody& body,
            const ServedModelPtr& model) {
  need(model->can.rerank, *model, "reranking");
  if (body.query.empty()) refuse("query", "query is empty", "missing_parameter");
  const auto reading = std::make_shared<Reading>(Reading{exchange, model, {}});
  if (model->can.classify) {
    std::vector<TextOrPair> pairs;
    for (const std::string& document : body.documents) pairs.push_back({body.query, document});
    judge(*reading, pairs);
    return read_rows(state, reading, judging(reading), [body](const Reading& done) {
      const Tensor logits_R = at::cat(done.parts).select(1, 0);
      return ranks_json(done, body, "classifier",
                        (body.use_activation ? at::sigmoid(logits_R) : logits_R).contiguous());
    });
  }
  std::vector<std::string> texts = {body.query};
  texts.insert(texts.end(), body.documents.begin(), body.documents.end());
  int64_t skipped = 0;
  reading->rows = rows_of(*model, texts, skipped);
  read_rows(
      state, reading,
      [model, skipped](const Rows& rows, size_t) {
        infer::EmbedOptions options = model->embedding;
        options.normalize = true;
        return infer::embed_rows(model->loaded, rows, options, skipped);
      },
      [body](const Reading& done) {
        const Tensor vectors_RD = at::cat(done.parts).to(at::kDouble);
        const Tensor scores_R =
            at::mv(vectors_RD.narrow(0, 1, vectors_RD.size(0) - 1), vectors_RD.select(0, 0))
                .contiguous();
        return ranks_json(done, body, "cosine", scores_R);
      });
}

/// Texts with special tokens; those written in the texts are parsed on demand.
Rows encoded(const ServedModel& model, const std::vector<std::string>& texts, bool parse_special) {
  Rows rows;
  for (const std::string& text : texts) {
    const auto ids =
        model.tokenizer().encode(text, {.add_special = true, .parse_special = parse_special});
    rows.emplace_back(ids.begin(), ids.end());
  }
  return rows;
}

/// Probabilities of rows of logits, in double.
Tensor softmax(const Tensor& logits_RC) {
  return at::softmax(logits_RC.to(at::kCPU, at::kDouble), -1).contiguous();
}

std::string label_of(const ServedModel& model, int64_t index) {
  const auto& head = dynamic_cast<const nn::ClassifierConfig&>(*model.spec().head.config);
  if (!head.labels.empty()) return head.labels[static_cast<size_t>(index)];
  const Json& config = model.loaded.source.foreign_config;
  if (config.is_object() && config.contains("id2label") && config["id2label"].is_object()) {
    const Json& labels = config["id2label"];
    const std::string key = std::to_string(index);
    if (labels.contains(key) && labels[key].is_string()) return labels[key].get<std::string>();
  }
  return "LABEL_" + std::to_string(index);
}

Json classes_json(const Reading& done, Json data) {
  return {{"id", fresh_id("classify")},
          {"object", "list"},
          {"data", std::move(data)},
          {"model", done.model->entry.id},
          {"usage", usage_of(done)}};
}

/// Character offsets of a text's tokens; empty if its tokenizer has none.
std::vector<std::pair<int64_t, int64_t>> places_of(const ServedModel& model,
                                                   const std::string& text) {
  std::vector<std::pair<int64_t, int64_t>> out;
  try {
    for (const text::TokenSpan& span : text::token_spans(model.tokenizer(), text)) {
      const std::string_view all = text;
      out.emplace_back(characters(all.substr(0, span.begin)), characters(all.substr(0, span.end)));
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) throw;
    out.clear();
  }
  return out;
}

/// A class of every token.
void classify_tokens(ServiceState& state,
                     const std::shared_ptr<Reading>& reading,
                     const ClassifyBody& body,
                     int64_t n) {
  for (size_t i = 0; i < body.input.size(); ++i)
    if (body.input[i].second)
      refuse(fmt::format("input[{}]", i),
             "this model classifies the tokens of texts; expected a text, not a pair");
  read_rows(
      state, reading,
      [model = reading->model](const Rows& rows, size_t) {
        return softmax(model->loaded.model.logits(model->loaded.model.hidden(nn::Batch::of(rows))));
      },
      [n, body](const Reading& done) {
        const Tensor all_RC = at::cat(done.parts).contiguous();
        const double* at = all_RC.const_data_ptr<double>();
        Json data = Json::array();
        for (size_t r = 0; r < done.rows.size(); ++r) {
          const text::ClassifierInput& judged = done.judged[r];
          const auto places = places_of(*done.model, body.input[r].text);
          Json tokens = Json::array();
          for (size_t t = 0; t < judged.ids.size(); ++t, at += n) {
            // special tokens around the text are left out
            if (t < judged.first_begin || t >= judged.first_begin + judged.first_length) continue;
            const auto token = static_cast<int32_t>(judged.ids[t]);
            const size_t own = t - judged.first_begin;
            const bool known = own < places.size();
            const int64_t best = std::max_element(at, at + n) - at;
            tokens.push_back(
                {{"token", done.model->tokenizer().decode(std::span(&token, 1), false)},
                 {"start", known ? Json(places[own].first) : Json()},
                 {"end", known ? Json(places[own].second) : Json()},
                 {"label", label_of(*done.model, best)},
                 {"score", at[best]}});
          }
          data.push_back({{"index", r}, {"num_classes", n}, {"tokens", std::move(tokens)}});
        }
        return classes_json(done, std::move(data));
      });
}

void classify(ServiceState& state,
              const ExchangePtr& exchange,
              const ClassifyBody& body,
              const ServedModelPtr& model) {
  need(model->can.classify, *model, "classification");
  const auto& head = dynamic_cast<const nn::ClassifierConfig&>(*model->spec().head.config);
  const auto reading = std::make_shared<Reading>(Reading{exchange, model, {}});
  judge(*reading, body.input);
  if (head.of == nn::ClassifierOf::tokens)
    return classify_tokens(state, reading, body, head.n_labels);
  read_rows(state, reading, judging(reading), [n = head.n_labels](const Reading& done) {
    const Tensor logits_RC = at::cat(done.parts);
    const Tensor p_RC = (n == 1 ? at::sigmoid(logits_RC) : softmax(logits_RC)).contiguous();
    const double* at = p_RC.const_data_ptr<double>();
    Json data = Json::array();
    for (int64_t r = 0; r < p_RC.size(0); ++r, at += n)
      data.push_back({{"index", r},
                      {"label", label_of(*done.model, std::max_element(at, at + n) - at)},
                      {"probs", std::vector<double>(at, at + n)},
                      {"num_classes", n}});
    return classes_json(done, std::move(data));
  });
}

/// Positions of the mask in a row.
std::vector<int64_t> masks_of(const ServedModel& model, const std::vector<int64_t>& row) {
  std::vector<int64_t> places;
  for (size_t i = 0; i < row.size(); ++i)
    if (row[i] == *model.mask) places.push_back(static_cast<int64_t>(i));
  return places;
}

Json mask_json(const Reading& reading,
               const std::vector<int64_t>& row,
               int64_t place,
               const double* p,
               const std::vector<int64_t>& candidates) {
  const text::Tokenizer& tokenizer = reading.model->tokenizer();
  Json out = Json::array();
  for (const int64_t id : candidates) {
    std::vector<int32_t> ids(row.begin(), row.end());
    ids[static_cast<size_t>(place)] = static_cast<int32_t>(id);
    const auto token = static_cast<int32_t>(id);
    out.push_back({{"score", p[id]},
                   {"token", id},
                   {"token_str", tokenizer.decode(std::span(&token, 1), false)},
                   {"sequence", tokenizer.decode(ids)}});
  }
  return out;
}

void fill_mask(ServiceState& state,
               const ExchangePtr& exchange,
               const FillMaskBody& body,
               const ServedModelPtr& model) {
  need(model->can.fill_mask, *model, "fill-mask");
  const auto reading =
      std::make_shared<Reading>(Reading{exchange, model, encoded(*model, body.input, true)});
  for (size_t i = 0; i < reading->rows.size(); ++i)
    if (masks_of(*model, reading->rows[i]).empty())
      refuse(fmt::format("input[{}]", i),
             fmt::format("input[{}] has no mask; expected {} in it", i,
                         model->tokenizer().token(static_cast<int32_t>(*model->mask))),
             "no_mask");
  std::vector<int64_t> targets;
  for (const std::string& target : body.targets) {
    const auto ids = model->tokenizer().encode(target, {.add_special = false});
    if (ids.size() != 1)
      refuse("targets", fmt::format("targets holds a text of {} tokens; expected one", ids.size()));
    targets.push_back(ids[0]);
  }
  read_rows(
      state, reading,
      [model](const Rows& rows, size_t) {
        const nn::Batch batch = nn::Batch::of(rows);
        const Tensor hidden_ND = model->loaded.model.hidden(batch);
        std::vector<int64_t> places;
        for (size_t r = 0; r < rows.size(); ++r)
          for (const int64_t place : masks_of(*model, rows[r]))
            places.push_back(batch.segments[r].begin + place);
        const Tensor some = at::tensor(places, at::kLong).to(hidden_ND.device());
        return softmax(model->loaded.model.logits(hidden_ND.index_select(0, some)));
      },
      [targets, k = body.top_k](const Reading& done) {
        const Tensor all_RC = at::cat(done.parts).contiguous();
        const int64_t width = all_RC.size(1);
        const double* p = all_RC.const_data_ptr<double>();
        const int64_t known = std::min<int64_t>(width, done.model->tokenizer().vocab_size());
        Json data = Json::array();
        for (size_t r = 0; r < done.rows.size(); ++r) {
          Json masks = Json::array();
          for (const int64_t place : masks_of(*done.model, done.rows[r])) {
            std::vector<int64_t> candidates = targets;
            if (candidates.empty()) {
              candidates.resize(static_cast<size_t>(known));
              std::iota(candidates.begin(), candidates.end(), int64_t{0});
            }
            const auto n = std::min(candidates.size(), static_cast<size_t>(k));
            std::partial_sort(candidates.begin(),
                              candidates.begin() + static_cast<std::ptrdiff_t>(n), candidates.end(),
                              [&](int64_t a, int64_t b) { return ranks_before(p[a], a, p[b], b); });
            candidates.resize(n);
            masks.push_back(mask_json(done, done.rows[r], place, p, candidates));
            p += width;
          }
          data.push_back({{"index", r}, {"masks", std::move(masks)}});
        }
        return Json{{"object", "list"},
                    {"data", std::move(data)},
                    {"model", done.model->entry.id},
                    {"usage", usage_of(done)}};
      });
}

/// A route with a body defined by a field list.
template <class Body>
void add(ServiceState& state,
         const char* path,
         const char* doc,
         const Fields<Body>& fields,
         void (*answer)(ServiceState&, const ExchangePtr&, const Body&, const ServedModelPtr&)) {
  state.routes.add({"POST", path, doc,
                    [&state, &fields, answer](const ExchangePtr& exchange, const std::string&) {
                      const auto body = std::make_shared<const Body>(state.body_of(
                          exchange, [&](const Json& json, std::vector<std::string>* ignored) {
                            return fields.read(json, ignored);
                          }));
                      state.with_model(
                          exchange, body->model,
                          [&state, exchange, body, answer](const ServedModelPtr& model) {
                            answer(state, exchange, *body, model);
                          });
                    },
                    false, false, [&fields] { return fields.schema(); }});
}

}  // namespace

void ServiceState::add_encoder_routes() {
  add(*this, "/v1/embeddings", "embeddings", embeddings_fields(), embed);
  routes.alias("/embeddings");
  add(*this, "/v1/rerank", "reranks documents by their relevance to a query", rerank_fields(),
      rerank);
  routes.alias("/rerank");
  routes.alias("/v1/reranking");
  routes.alias("/reranking");
  add(*this, "/v1/classify", "text or token classification", classify_fields(), classify);
  routes.alias("/classify");
  add(*this, "/v1/fill-mask", "predictions for a mask token", fill_mask_fields(), fill_mask);
}

}  // namespace tessera::serve
