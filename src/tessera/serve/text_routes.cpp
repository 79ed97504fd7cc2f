// Tokenization and detokenization routes.
#include "tessera/serve/service_state.h"
#include "tessera/text/tokenizer/raw_prompt.h"

namespace tessera::serve {
namespace {

void tokenize(const ServiceState& state,
              const ExchangePtr& exchange,
              const TokenizeBody& body,
              const ServedModelPtr& model) {
  if (body.content.has_value() == !body.messages.is_null())
    refuse("content", "expected either content or messages", "missing_parameter");
  const text::Tokenizer& tokenizer = model->tokenizer();
  std::vector<int32_t> ids;
  if (body.content) {
    text::RawPrompt prompt =
        text::encode_raw_prompt(tokenizer, *body.content,
                                {.add_special = body.add_special.value_or(body.as_prompt),
                                 .parse_special = body.parse_special});
    if (!prompt.warning.empty()) exchange->add_warning(prompt.warning);
    ids = std::move(prompt.ids);
  } else {
    if (!model->can.chat) throw ApiError(400, "no_chat_template", model->no_chat);
    ids = model->conversation->prompts.encode(
        model->conversation->render({.messages = body.messages, .poll = state.poll_of(exchange)}));
  }
  Json out = {{"tokens", ids}, {"count", ids.size()}, {"max_model_len", model->context()}};
  if (body.with_pieces) {
    out["pieces"] = Json::array();
    for (const int32_t id : ids)
      out["pieces"].push_back(
          {{"id", id}, {"piece", tokenizer.of_source().decode(std::span(&id, 1), false)}});
  }
  exchange->answer(out);
}

void detokenize(const ExchangePtr& exchange,
                const DetokenizeBody& body,
                const ServedModelPtr& model) {
  std::vector<int32_t> ids;
  for (const int64_t id : body.tokens) {
    if (id >= model->spec().vocab)
      refuse("tokens",
             fmt::format("tokens holds {}; expected 0 to {}", id, model->spec().vocab - 1));
    ids.push_back(static_cast<int32_t>(id));
  }
  exchange->answer(Json{{"content", model->tokenizer().decode(ids, false)}});
}

void apply_template(const ServiceState& state,
                    const ExchangePtr& exchange,
                    const ChatBody& body,
                    const ServedModelPtr& model) {
  const text::TemplatePoll poll = state.poll_of(exchange, body.timeout_ms);
  const ServedModel::Chats chats = state.chats_of(
      body.chat_template, *model, !body.tools.is_null() && body.tool_choice != "none", poll);
  const text::MarkedText prompt =
      chats.render({.messages = body.messages,
                    .tools = body.tool_choice == "none" ? Json(nullptr) : body.tools,
                    .add_generation_prompt = *body.add_generation_prompt,
                    .variables = body.template_variables,
                    .poll = poll},
                   *body.continue_final_message);
  exchange->answer(Json{{"prompt", prompt.text}, {"tokens", chats.prompts.encode(prompt)}});
}

}  // namespace

void ServiceState::add_text_routes() {
  routes.add({"POST", "/tokenize", "tokenizes a text or a conversation",
              [this](const ExchangePtr& exchange, const std::string&) {
                const auto body = std::make_shared<const TokenizeBody>(
                    body_of(exchange, [](const Json& json, std::vector<std::string>* ignored) {
                      return tokenize_fields().read(json, ignored);
                    }));
                with_model(exchange, body->model,
                           [this, exchange, body](const ServedModelPtr& model) {
                             tokenize(*this, exchange, *body, model);
                           });
              },
              false, false, [] { return tokenize_fields().schema(); }});
  routes.add({"POST", "/detokenize", "converts token ids to text",
              [this](const ExchangePtr& exchange, const std::string&) {
                const auto body = std::make_shared<const DetokenizeBody>(
                    body_of(exchange, [](const Json& json, std::vector<std::string>* ignored) {
                      return detokenize_fields().read(json, ignored);
                    }));
                with_model(exchange, body->model, [exchange, body](const ServedModelPtr& model) {
                  detokenize(exchange, *body, model);
                });
              },
              false, false, [] { return detokenize_fields().schema(); }});
  routes.add({"POST", "/apply-template", "prompt of a conversation by the chat template",
              [this](const ExchangePtr& exchange, const std::string&) {
                const auto body = std::make_shared<const ChatBody>(body_of(exchange, read_chat));
                with_model(exchange, body->model,
                           [this, exchange, body](const ServedModelPtr& model) {
                             apply_template(*this, exchange, *body, model);
                           });
              },
              false, false, [] { return chat_fields().schema(); }});
}

}  // namespace tessera::serve
