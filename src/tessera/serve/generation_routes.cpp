// Completions, chats and translations.
#include <limits>

#include <fmt/ranges.h>

#include "tessera/base/sha256.h"
#include "tessera/infer/engine/mask_predict.h"
#include "tessera/infer/loading/decoding_defaults.h"
#include "tessera/infer/sampling/seed.h"
#include "tessera/serve/service_state.h"
#include "tessera/text/tokenizer/raw_prompt.h"
#include "tessera/text/tokenizer/vocabularies.h"

namespace tessera::serve {
namespace {

std::vector<int64_t> widened(const std::vector<int32_t>& ids) {
  return {ids.begin(), ids.end()};
}

std::vector<int64_t> plain_ids(const ServedModel& model, const std::string& text) {
  return widened(model.tokenizer().encode(text, {.add_special = false}));
}

/// Whether the request sets an option of infer::take_defaults().
bool is_given(const GenerationBody& body, std::string_view name) {
  if (name == "max_new_tokens") return true;  // room_for() counts the rows of the server too
  if (name == "min_new_tokens") return body.min_tokens > 0;
  if (name == "stop") return !body.stop.empty();
  if (name == "samplers") return body.samplers.has_value();
  return body.sampled(name).has_value();
}

/// Sampling options of the request alone.
infer::SamplingOptions sampling_of(const GenerationBody& body,
                                   const ServedModel& model,
                                   uint64_t seed) {
  infer::SamplingOptions out;
  for (const auto& [field, value] : body.sampling)
    field->set(out, std::max(value, field->least));  // -1 of a request is 0 here
  if (body.dry_sequence_breakers) out.dry_sequence_breakers = *body.dry_sequence_breakers;
  if (body.samplers) out.samplers = *body.samplers;
  out.bad_words = body.bad_words;
  const auto known = [&](int64_t id, const char* field) {
    if (id >= model.spec().vocab)
      refuse(field,
             fmt::format("{} names token {}; expected 0 to {}", field, id, model.spec().vocab - 1));
  };
  for (const auto& [id, bias] : body.logit_bias) known(id, "logit_bias");
  out.logit_bias = body.logit_bias;
  for (const auto& [text, bias] : body.text_bias)
    for (const int64_t id : plain_ids(model, text)) out.logit_bias.emplace_back(id, bias);
  for (const int64_t id : body.allowed_token_ids.value_or(std::vector<int64_t>()))
    known(id, "allowed_token_ids");
  out.allowed_ids = body.allowed_token_ids;
  for (const auto& [ids, bias] : body.sequence_bias)
    for (const int64_t id : ids) known(id, "sequence_bias");
  out.sequence_bias = body.sequence_bias;
  out.seed = seed;
  return out;
}

/// Refuses options of samplers that exclude each other.
void check_samplers(const GenerationBody& body, const infer::SamplingOptions& options) {
  if (options.mirostat == 1) refuse("mirostat", "mirostat is 1; expected 0 (off) or 2");
  // clients send the options of all samplers, most of them switched off
  const std::string conflict =
      infer::conflict_among(options, [&](const infer::DecodingField& field) {
        const bool range = field.filters && field.sampler == infer::Sampler::temperature;
        return body.sampled(field.name) && (range           ? options.dynatemp_range > 0
                                            : field.sampler ? infer::acts(*field.sampler, options)
                                                            : true);
      });
  if (!conflict.empty()) refuse(options.mirostat != 0 ? "mirostat" : "samplers", conflict);
}

infer::BeamOptions beams_of(const SearchBody& body) {
  infer::BeamOptions out;
  out.beams = body.beams.value_or(1);
  out.length_penalty = body.length_penalty.value_or(out.length_penalty);
  out.early_stopping = body.early_stopping.value_or(out.early_stopping);
  return out;
}

/// Max. number of new tokens after a prompt.
int64_t room_for(const GenerationBody& body,
                 const ServedModel& model,
                 int64_t prompt,
                 int64_t otherwise,
                 const char* param) {
  const bool pair = model.spec().encoder != nullptr;
  const auto exceeded = [&](const std::string& what, int64_t context) {
    refuse(param, fmt::format("{}; {} is {}", what, model.context_name, context),
           "context_length_exceeded");
  };
  const int64_t context = model.context();
  if (context > 0 && prompt > context)
    exceeded(fmt::format("the prompt has {} tokens", prompt), context);
  const int64_t held = pair ? 1 : prompt, longest = pair ? model.longest : context;
  if (longest == 0) return body.max_tokens.value_or(otherwise);
  // the last token is never fed
  const int64_t left = longest - held + 1;
  if (!body.max_tokens) return std::min(left, otherwise);
  if (*body.max_tokens > left)
    exceeded(fmt::format("{} tokens and {} new ones", held, *body.max_tokens), longest);
  return *body.max_tokens;
}

/// Prompts and options of a generation request.
struct GenerationRequest {
  ExchangePtr exchange;
  ServedModelPtr model;
  bool chat = false;
  std::vector<std::vector<int64_t>> prompts = {};
  std::vector<std::string> echo = {};
  std::vector<retrieve::AugmentedPrompt> asked = {};  // passages of each prompt, if any
  bool content = false;                               // see ResponseOptions
  /// Default of max_tokens; without one, that of the model or the server.
  std::optional<int64_t> otherwise = 16;
  const char* param = "prompt";
  std::optional<text::ReplyParser::Options> reply = {};
  std::vector<int64_t> ends = {};                           // stop tokens of a chat
  std::shared_ptr<const text::Constraint> calls = nullptr;  // constraint of tool calls
  std::optional<ConstraintCache::Thoughts> reasoning = {};  // reasoning before the answer
  std::optional<infer::ReasoningBudget> reasoning_budget = {};
};

Frames frames_of(const GenerationRequest& asked, const GenerationBody& body, uint64_t seed) {
  return {.chat = asked.chat,
          .id = fresh_id(asked.chat ? "chatcmpl" : "cmpl"),
          .created = std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count(),
          .model = asked.model->entry.id,
          .fingerprint = asked.model->fingerprint,
          .seed = seed,
          .usage = body.include_usage};
}

/// The part of the engine request that all prompts share.
infer::DecodingOptions writing_of(const GenerationBody& body,
                                  const GenerationRequest& asked,
                                  bool config,
                                  uint64_t seed) {
  const ServedModel& model = *asked.model;
  infer::DecodingOptions out;
  out.sampling = sampling_of(body, model, seed);
  out.min_new_tokens = body.min_tokens;
  out.stop_strings = body.stop;
  const infer::DecodingDefaults defaults = model.decoding(config);
  infer::take_defaults(
      defaults, [&](std::string_view name) { return is_given(body, name); }, out);
  check_samplers(body, out.sampling);
  if (model.loaded.tokenizer) infer::find_ids(out.sampling, *model.loaded.tokenizer);
  // a marker of tool calls may be a special token
  if (asked.reply && asked.reply->format != nullptr) {
    const text::ToolCallFormat& format = *asked.reply->format;
    const auto id = model.tokenizer().id(format.open.empty() ? format.before : format.open);
    out.show_special = id && model.tokenizer().is_special(*id);
  }
  out.keep_stop = body.keep_stop;
  if (!body.ignore_eos) out.stop_ids = asked.chat ? asked.ends : model.ends;
  for (const int64_t id : body.stop_token_ids)
    if (id >= model.spec().vocab)
      refuse("stop_token_ids", fmt::format("stop_token_ids names token {}; expected 0 to {}", id,
                                           model.spec().vocab - 1));
  out.stop_ids.insert(out.stop_ids.end(), body.stop_token_ids.begin(), body.stop_token_ids.end());
  std::vector<std::string> ignored;
  out.constraint = asked.calls
                       ? asked.calls
                       : model.constraints.of(body, model.tokenizer(), asked.reasoning, &ignored);
  if (!ignored.empty())
    asked.exchange->add_warning(fmt::format("not held to: {}", fmt::join(ignored, ", ")));
  out.reasoning = asked.reasoning_budget;
  out.line_limit = std::chrono::milliseconds(std::max<int64_t>(0, body.line_limit_ms));
  out.context = model.longest;
  infer::take_forced_tokens(defaults, model.spec().encoder != nullptr, !body.ignore_eos, out);
  return out;
}

/// The salt of a request's cached prefixes: requests with the same key and cache_salt share them.
/// So the time of a prefill reveals nothing about the prompts of other clients.
int64_t salt_of(const ServiceState& state, const Exchange& exchange, const GenerationBody& body) {
  if (!body.cache_prompt) return infer::Sequence::kAlone;
  const bool keys = state.access.keys() > 1;
  if (body.cache_salt.empty() && !keys) return 0;
  const std::string all = fmt::format("{} {}", keys ? exchange.key : 0, body.cache_salt);
  const std::string digest = sha256(all);
  return std::stoll(digest.substr(0, 15), nullptr, 16);
}

/// Submits the sequences to the scheduler.
void submit(ServiceState& state,
            const GenerationRequest& asked,
            const GenerationBody& body,
            bool echo) {
  const ServedModel& model = *asked.model;
  const uint64_t seed = body.seed ? *body.seed : infer::fresh_seed();
  const infer::DecodingOptions decoding =
      writing_of(body, asked, state.options.generation_config, seed);
  const bool logprobs = body.top_logprobs.has_value();
  const infer::DecodingDefaults defaults = model.decoding(state.options.generation_config);
  const int64_t most = defaults.max_new_tokens.value_or(state.options.max_tokens);
  ScheduledRequest job = state.job_of(asked.exchange, asked.model, body.timeout_ms);
  job.choices = body.n;
  if (body.priority != 0 && !state.options.engine.priorities)
    refuse("priority", "priority: this server has none; it is started with --priorities",
           "unsupported_parameter");
  job.priority = body.priority;
  ResponseOptions answer{.frames = frames_of(asked, body, seed),
                         .stream = body.stream,
                         .reply = asked.reply,
                         .token_ids = body.return_token_ids,
                         .logprobs = logprobs,
                         .echo = asked.echo,
                         .choices = body.n,
                         .stop_ids = body.stop_token_ids,
                         .asked = asked.asked,
                         .timings = body.timings_per_token,
                         .content = asked.content,
                         .limits = state.options.server.limits};
  int64_t longest = 0, source = 0;
  for (const std::vector<int64_t>& prompt : asked.prompts) {
    const int64_t tokens = infer::size_of(prompt);
    if (tokens == 0)
      refuse(asked.param, std::string(asked.param) + " has no token; expected at least one",
             "invalid_value");
    const int64_t vocab = (model.spec().encoder ? *model.spec().encoder : model.spec()).vocab;
    for (const int64_t id : prompt)
      if (id >= vocab)
        refuse(asked.param,
               fmt::format("{} holds token {}; expected 0 to {}", asked.param, id, vocab - 1));
    infer::Request request{infer::first_sequence(model.spec(), prompt)};
    request.decoding = decoding;
    request.decoding.max_new_tokens =
        room_for(body, model, tokens, asked.otherwise.value_or(most), asked.param);
    if (!body.max_tokens && !asked.otherwise && defaults.max_length > 0)
      request.decoding.max_new_tokens =
          std::clamp<int64_t>(defaults.max_length - infer::size_of(request.prompt.tokens), 1,
                              request.decoding.max_new_tokens);
    request.prompt.salt = salt_of(state, *asked.exchange, body);
    if (!body.prediction.empty() && model.speculation.lookup > 0) {
      const auto ids = model.tokenizer().encode(body.prediction, {.add_special = false});
      request.predicted.assign(ids.begin(), ids.end());
    }
    if (logprobs) request.logprobs = *body.top_logprobs;
    request.post_sampling_logprobs = body.post_sampling_probs;
    if (body.searches()) request.beams = beams_of(body);
    const int64_t held = infer::size_of(request.prompt.tokens) + request.decoding.max_new_tokens;
    longest = std::max(longest, held);
    source = std::max(source, infer::size_of(request.prompt.source));
    job.prompt_tokens += tokens;
    if (echo && logprobs) {
      answer.echo_ids.push_back(prompt);
      if (tokens > 1) {
        request.targets = infer::next_tokens(request.prompt);
        request.targets.top = *body.top_logprobs;
      }
    }
    for (int64_t i = 0; i < body.n; ++i) {
      request.decoding.choice = i;
      job.requests.push_back(request);
      request.targets = {};
    }
  }
  answer.prompt_tokens = job.prompt_tokens;
  job.row_bytes = model.state_bytes(longest, source) * body.beams.value_or(1);
  const auto texts = std::make_shared<ResponseWriter>(asked.exchange, asked.model,
                                                      std::move(answer), job.requests.size());
  for (size_t i = 0; i < job.requests.size(); ++i) texts->listen(job.requests[i], i);
  job.on_begin = [texts] { texts->begin(); };
  if (body.stream) {
    job.on_step = [texts] { texts->flush(); };
    job.client_is_slow = [texts] { return texts->client_is_slow(); };
  }
  job.on_end = [texts](std::vector<infer::Generation> made, FinishStatus ending,
                       std::exception_ptr error) { texts->end(std::move(made), ending, error); };
  state.engine->submit(std::move(job));
}

/// Calls `go` on a worker with each question and its retrieved passages; the scheduler's thread
/// searches for them.
void augment_prompt(ServiceState& state,
                    const ExchangePtr& exchange,
                    const GenerationBody& body,
                    const ServedModelPtr& model,
                    const std::vector<std::string>& questions,
                    const std::function<void(std::vector<retrieve::AugmentedPrompt> asked)>& go) {
  if (!state.asker)
    refuse("retrieve", "retrieve: this server has no index; it is started with --retrieve INDEX",
           "unsupported_parameter");
  const retrieve::PassageBudget room{body.passages.value_or(state.options.room.passages),
                                     body.passage_tokens.value_or(state.options.room.tokens)};
  const auto asked = std::make_shared<std::vector<retrieve::AugmentedPrompt>>();
  ScheduledRequest job = state.job_of(exchange, model, body.timeout_ms);
  job.priority = body.priority;
  job.part = true;
  job.work = [&state, exchange, model, questions, room, asked] {
    asked->push_back(state.asker->ask(questions[asked->size()], model->tokenizer(), room,
                                      &exchange->disconnected()));
    return asked->size() == questions.size();
  };
  job.on_end = [&state, exchange, asked, go](std::vector<infer::Generation>, FinishStatus ending,
                                             const std::exception_ptr& error) {
    if (fail_unless_done(*exchange, ending, error)) return;
    state.work(exchange, [asked, go] { go(std::move(*asked)); });
  };
  state.engine->submit(std::move(job));
}

/// A fill-in-the-middle prompt; the middle begins with `begun`.
std::vector<int64_t> around_middle(const ServedModel& model, const InfillBody& body) {
  if (!model.fim)
    throw ApiError(400, "model_capability",
                   "this model's vocabulary has no tokens for fill-in-the-middle");
  std::vector<int64_t> ids;
  if (const auto bos = model.tokenizer().bos())
    if (const auto around = model.tokenizer().surround({}); !around.empty() && around[0] == *bos)
      ids.push_back(*bos);
  const auto add = [&](const std::string& text) {
    const auto more = plain_ids(model, text);
    ids.insert(ids.end(), more.begin(), more.end());
  };
  for (const InfillBody::File& file : body.files) {
    if (model.fim->file) {
      ids.push_back(*model.fim->file);
      add(file.name + "\n");
    }
    add(file.text + "\n");
  }
  if (!body.files.empty() && model.fim->file) ids.push_back(*model.fim->file);
  ids.push_back(model.fim->prefix);
  add(body.prefix);
  ids.push_back(model.fim->suffix);
  add(body.suffix);
  ids.push_back(model.fim->middle);
  add(body.prompt);
  return ids;
}

void infill(ServiceState& state,
            const ExchangePtr& exchange,
            const InfillBody& body,
            const ServedModelPtr& model) {
  submit(state,
         {.exchange = exchange,
          .model = model,
          .prompts = {around_middle(*model, body)},
          .content = true,
          .otherwise = body.unbounded ? state.options.max_tokens : 128,
          .param = "input_prefix"},
         body, false);
}

void complete_asked(ServiceState& state,
                    const ExchangePtr& exchange,
                    const CompletionBody& body,
                    const ServedModelPtr& model,
                    std::vector<retrieve::AugmentedPrompt> passages) {
  GenerationRequest asked{.exchange = exchange, .model = model, .content = body.native};
  if (body.native || body.unbounded) asked.otherwise.reset();
  std::string warning;
  for (size_t i = 0; i < body.prompts.size(); ++i) {
    const Prompt& prompt = body.prompts[i];
    if (!body.suffix.empty()) {
      InfillBody around;
      if (prompt.ids)
        around.prefix = model->tokenizer().decode(
            std::vector<int32_t>(prompt.ids->begin(), prompt.ids->end()), false);
      else
        around.prefix = prompt.text;
      around.suffix = body.suffix;
      asked.prompts.push_back(around_middle(*model, around));
      continue;
    }
    if (prompt.ids) {
      asked.prompts.push_back(*prompt.ids);
    } else {
      // passages are untrusted text
      const bool parses = passages.empty() && body.parse_special.value_or(true);
      const text::RawPrompt read = text::encode_raw_prompt(
          model->tokenizer(), passages.empty() ? prompt.text : passages[i].prompt,
          {.parse_special = parses});
      if (warning.empty()) warning = read.warning;
      asked.prompts.push_back(widened(read.ids));
    }
    if (!body.echo) continue;
    const std::vector<int64_t>& ids = asked.prompts.back();
    asked.echo.push_back(
        prompt.ids ? model->tokenizer().decode(std::vector<int32_t>(ids.begin(), ids.end()))
                   : prompt.text);
  }
  if (!warning.empty()) exchange->add_warning(warning);
  asked.asked = std::move(passages);
  if (body.echo && model->spec().encoder)
    refuse("echo", "echo: not available for encoder-decoder models", "unsupported_parameter");
  submit(state, asked, body, body.echo);
}

void complete(ServiceState& state,
              const ExchangePtr& exchange,
              const std::shared_ptr<const CompletionBody>& body,
              const ServedModelPtr& model) {
  need(model->can.completion, *model, "completions");
  // retrieval for completions only on request
  if (!body->retrieve.value_or(false)) return complete_asked(state, exchange, *body, model, {});
  std::vector<std::string> questions;
  for (const Prompt& prompt : body->prompts) {
    if (prompt.ids) refuse("prompt", "prompt: token ids with retrieve; expected a text");
    questions.push_back(prompt.text);
  }
  augment_prompt(state, exchange, *body, model, questions,
                 [&state, exchange, body, model](std::vector<retrieve::AugmentedPrompt> asked) {
                   complete_asked(state, exchange, *body, model, std::move(asked));
                 });
}

/// The functions in tool_choice, a subset of the request's tools; all if it names none.
Json chosen_tools(const ChatBody& body) {
  const Json& choice = body.tool_choice;
  if (!choice.is_object()) return body.tools;
  const auto name_of = [](const Json& one) {
    const Json function = one.is_object() ? one.value("function", Json()) : Json();
    return function.is_object() ? function.value("name", Json()) : Json();
  };
  std::vector<Json> names;
  if (choice.value("type", Json()) == "allowed_tools") {
    for (const Json& one : choice["tools"]) names.push_back(name_of(one));
  } else {
    names.push_back(name_of(choice));
  }
  Json tools = Json::array();
  for (const Json& name : names) {
    const auto found = std::find_if(body.tools.begin(), body.tools.end(), [&](const Json& tool) {
      return tool["function"]["name"] == name;
    });
    if (found == body.tools.end())
      refuse("tool_choice", "tool_choice names a function that is not among tools");
    tools.push_back(*found);
  }
  if (tools.empty()) refuse("tool_choice", "tool_choice names no function");
  return tools;
}

/// The constraint if tool_choice forces a call or restricts the functions; else null.
std::shared_ptr<const text::Constraint> held_calls(const ChatBody& body,
                                                   const ServedModel& model,
                                                   const ServedModel::Chats& chats,
                                                   bool thinking) {
  const Json& choice = body.tool_choice;
  const bool some = choice.is_object() && choice.value("type", Json()) == "allowed_tools";
  const bool named = choice.is_object() && !some;
  const bool required = named || choice == "required" || (some && choice["mode"] == "required");
  if (!required && !some && body.parallel_tool_calls) return nullptr;
  if (body.constrained())
    refuse("tool_choice",
           "required tool calls with another structured output; leave one of them out",
           "unsupported_parameter");
  text::CallGrammarOptions options{.format = chats.calls,
                                   .tools = chosen_tools(body),
                                   .required = required,
                                   .parallel = body.parallel_tool_calls && !named,
                                   .thinking = thinking,
                                   .tokenizer = &model.tokenizer()};
  if (thinking) options.reasoning = chats.prompts.reasoning();
  return model.constraints.of_calls(options, model.tokenizer());
}

void chat_asked(ServiceState& state,
                const ExchangePtr& exchange,
                const ChatBody& body,
                const ServedModelPtr& model,
                std::vector<retrieve::AugmentedPrompt> passages) {
  const text::TemplatePoll poll = state.poll_of(exchange, body.timeout_ms);
  const ServedModel::Chats chats = state.chats_of(
      body.chat_template, *model, !body.tools.is_null() && body.tool_choice != "none", poll);
  const text::ChatPrompt& prompts = chats.prompts;
  Json messages = body.messages;
  if (!passages.empty()) messages.back()["content"] = passages[0].prompt;
  const bool calls = !body.tools.is_null() && body.tool_choice != "none";
  if (calls && chats.calls == nullptr)
    refuse("tools",
           "this model's chat template shows no tools; --tool-format auto puts them into the "
           "conversation",
           "tools_unsupported");
  const text::MarkedText prompt =
      chats.render({.messages = messages,
                    .tools = calls ? body.tools : Json(nullptr),
                    .add_generation_prompt = *body.add_generation_prompt,
                    .variables = body.template_variables,
                    .poll = poll},
                   *body.continue_final_message);
  GenerationRequest asked{.exchange = exchange,
                          .model = model,
                          .chat = true,
                          .prompts = {widened(prompts.encode(prompt))},
                          .asked = std::move(passages),
                          .otherwise = std::nullopt,
                          .param = "messages",
                          .ends = chats.ends};
  const bool thinking = prompts.thinks(prompt);
  if (body.split_reasoning || calls) {
    asked.reply.emplace();
    if (calls) asked.reply->format = chats.calls;
    if (calls) asked.reply->tools = body.tools;
    if (body.split_reasoning) asked.reply->reasoning = prompts.reasoning();
    asked.reply->thinking = body.split_reasoning && thinking;
  }
  if (calls) asked.calls = held_calls(body, *model, chats, thinking);
  const text::ReasoningTags& tags = prompts.reasoning();
  // a template with reasoning tags belongs to a reasoning model
  if (thinking || text::thought_tags_of(prompts.chat_template().source()))
    asked.reasoning = {tags, thinking};
  if (body.reasoning_budget >= 0) {
    const auto ids = [&](const std::string& tag) {
      return widened(model->tokenizer().encode(tag, {.add_special = false, .parse_special = true}));
    };
    asked.reasoning_budget = {body.reasoning_budget, thinking, ids(tags.open), ids(tags.close)};
  }
  submit(state, asked, body, false);
}

void chat(ServiceState& state,
          const ExchangePtr& exchange,
          const std::shared_ptr<const ChatBody>& body,
          const ServedModelPtr& model) {
  // only the last question gets passages, to save context
  const bool question = body->messages.back()["role"] == "user";
  if (body->retrieve.value_or(false) && !question)
    refuse("retrieve", "retrieve: the last message is no question; expected one of the user");
  if (!question || !body->retrieve.value_or(state.asker != nullptr))
    return chat_asked(state, exchange, *body, model, {});
  augment_prompt(state, exchange, *body, model,
                 {body->messages.back()["content"].get<std::string>()},
                 [&state, exchange, body, model](std::vector<retrieve::AugmentedPrompt> asked) {
                   chat_asked(state, exchange, *body, model, std::move(asked));
                 });
}

/// Notations of language tokens in vocabularies.
std::optional<int64_t> language_of(const text::Tokenizer& tokenizer, const std::string& name) {
  for (const auto& [open, close] : text::known_tokens().languages)
    // ">>de<<" is no word, special or not
    if (const auto id = tokenizer.id(open + name + close);
        id && (tokenizer.is_special(*id) || open == ">>"))
      return *id;
  return std::nullopt;
}

/// The token of a language; throws if the vocabulary has none.
std::optional<int64_t> language_token(const ServedModel& model,
                                      const std::string& name,
                                      const char* param) {
  if (name.empty()) return std::nullopt;
  const text::Tokenizer& tokenizer = model.tokenizer().of_source();
  const auto id = language_of(tokenizer, name);
  if (id) return id;
  std::vector<std::string> known;
  for (int32_t i = 0; i < tokenizer.vocab_size() && known.size() < 300; ++i) {
    if (!tokenizer.has(i) || !(tokenizer.is_special(i) || tokenizer.token(i).starts_with(">>")))
      continue;
    // a language is letters between the markers
    std::string word(tokenizer.token(i));
    for (const auto& [open, close] : text::known_tokens().languages)
      // <pad> and the like are no languages
      if (open.size() > 1 && word.starts_with(open) && word.ends_with(close) &&
          word.size() > open.size() + close.size())
        word = word.substr(open.size(), word.size() - open.size() - close.size());
    if (word.size() >= 2 && word.size() <= 8 &&
        word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-") ==
            std::string::npos)
      known.push_back(word);
  }
  refuse(param,
         fmt::format("{} is no language that a token of this model names; {}", param,
                     known.empty() ? "it has none: leave it out"
                                   : fmt::format("expected one of {}", fmt::join(known, ", "))),
         "unknown_language");
}

/// Translation with an encoder-decoder. A token for the target language precedes the source
/// (">>de<<") or begins the target ("__de__", "de_DE").
void translate(ServiceState& state,
               const ExchangePtr& exchange,
               const TranslateBody& body,
               const ServedModelPtr& model) {
  need(model->can.translate, *model, "translation");
  const auto source = language_token(*model, body.source_lang, "source_lang"),
             target = language_token(*model, body.target_lang, "target_lang");
  const std::string target_token =
      target ? std::string(model->tokenizer().of_source().token(static_cast<int32_t>(*target)))
             : "";
  const bool before = target_token.starts_with(">>") || target_token.starts_with("<2");
  ScheduledRequest job = state.job_of(exchange, model);
  int64_t longest = 0, source_tokens = 0, beams = 1;
  const infer::DecodingDefaults defaults = model->decoding(state.options.generation_config);
  GenerationBody limits;
  limits.max_tokens = body.max_tokens;
  std::optional<infer::MaskPredictOptions> mask_predict;
  if (body.iterations || body.lengths) mask_predict.emplace();
  if (body.iterations) mask_predict->iterations = *body.iterations;
  if (body.lengths) mask_predict->lengths = *body.lengths;
  for (const std::string& text : body.input) {
    auto ids = widened(model->tokenizer().of_source().encode(text));
    if (before) ids.insert(ids.begin(), *target);
    if (source) ids.insert(ids.begin(), *source);
    infer::Request request{infer::first_sequence(model->spec(), ids)};
    infer::DecodingOptions& decoding = request.decoding;
    // the limit of length is set below: the server's counts too
    if (!model->spec().mask)
      infer::take_defaults(
          defaults, [](std::string_view name) { return name == "max_new_tokens"; }, decoding);
    // a model that repeats itself ends, and no translation is cut short
    const int64_t usual = std::max<int64_t>(256, 2 * infer::size_of(ids));
    decoding.max_new_tokens = room_for(
        limits, *model, infer::size_of(ids),
        defaults.max_new_tokens.value_or(std::min(usual, state.options.max_tokens)), "input");
    decoding.stop_ids = model->ends;
    decoding.context = model->longest;
    decoding.mask_predict = mask_predict;
    if (!model->spec().mask && !body.max_tokens && defaults.max_length > 1)
      decoding.max_new_tokens = std::min(decoding.max_new_tokens, defaults.max_length - 1);
    if (target && !before) decoding.forced_begin = {*target};
    infer::take_forced_tokens(defaults, true, true, decoding);
    if (body.searches()) request.beams = beams_of(body);
    if (!body.beams && !model->spec().mask) request.beams = defaults.beams;
    beams = request.beams ? request.beams->beams : 1;
    infer::check_mask_predict(model->spec(), request);
    longest = std::max(longest, decoding.max_new_tokens + 1);
    source_tokens = std::max(source_tokens, infer::size_of(ids));
    job.prompt_tokens += infer::size_of(ids);
    job.requests.push_back(std::move(request));
  }
  job.row_bytes = model->state_bytes(longest, source_tokens) * beams;
  job.on_end = [exchange, model](std::vector<infer::Generation> made, FinishStatus ending,
                                 std::exception_ptr error) {
    if (fail_unless_done(*exchange, ending, error)) return;
    Json data = Json::array();
    Usage usage;
    for (size_t i = 0; i < made.size(); ++i) {
      usage.prompt_tokens += made[i].prompt_tokens;
      usage.completion_tokens += infer::size_of(made[i].token_ids);
      data.push_back(
          {{"index", i}, {"text", made[i].text}, {"finish_reason", made[i].finish_reason}});
      if (const std::string limit = limit_of(made[i]); !limit.empty()) data.back()["limit"] = limit;
    }
    exchange->count({.prompt_tokens = usage.prompt_tokens,
                     .generated_tokens = usage.completion_tokens,
                     .model = model->entry.id,
                     .finish = made.empty() ? "" : made[0].finish_reason});
    exchange->answer(Json{{"object", "list"},
                          {"data", std::move(data)},
                          {"model", model->entry.id},
                          {"usage", to_json(usage)}});
  };
  state.engine->submit(std::move(job));
}

/// llama.cpp's default as its settings show it, -1 in 32 bits; clients send it back.
void settle_native_seed(GenerationBody& body) {
  if (body.seed == std::numeric_limits<uint32_t>::max()) body.seed.reset();
}

}  // namespace

void ServiceState::add_generation_routes() {
  routes.add({"POST", "/v1/completions", "completions of prompts",
              [this](const ExchangePtr& exchange, const std::string&) {
                const auto body =
                    std::make_shared<const CompletionBody>(body_of(exchange, read_completion));
                with_model(
                    exchange, body->model,
                    [this, exchange, body](const ServedModelPtr& model) {
                      complete(*this, exchange, body, model);
                    },
                    body->timeout_ms);
              },
              false, false, [] { return completion_fields().schema(); }});
  routes.alias("/completions");
  routes.add(
      {"POST", "/completion",
       "completion in llama.cpp's native format: text in \"content\", n_predict unlimited by "
       "default",
       [this](const ExchangePtr& exchange, const std::string&) {
         CompletionBody asked = body_of(exchange, read_completion);
         asked.native = true;
         settle_native_seed(asked);
         const auto body = std::make_shared<const CompletionBody>(std::move(asked));
         with_model(
             exchange, body->model,
             [this, exchange, body](const ServedModelPtr& model) {
               complete(*this, exchange, body, model);
             },
             body->timeout_ms);
       },
       false, false, [] { return completion_fields().schema(); }});
  routes.add({"POST", "/infill", "fill-in-the-middle (FIM) completion between two parts of a text",
              [this](const ExchangePtr& exchange, const std::string&) {
                InfillBody asked = body_of(exchange, read_infill);
                settle_native_seed(asked);
                const auto body = std::make_shared<const InfillBody>(std::move(asked));
                with_model(
                    exchange, body->model,
                    [this, exchange, body](const ServedModelPtr& model) {
                      infill(*this, exchange, *body, model);
                    },
                    body->timeout_ms);
              },
              false, false, [] { return infill_fields().schema(); }});
  routes.add({"POST", "/v1/chat/completions", "chat completion",
              [this](const ExchangePtr& exchange, const std::string&) {
                const auto body = std::make_shared<const ChatBody>(body_of(exchange, read_chat));
                with_model(
                    exchange, body->model,
                    [this, exchange, body](const ServedModelPtr& model) {
                      chat(*this, exchange, body, model);
                    },
                    body->timeout_ms);
              },
              false, false, [] { return chat_fields().schema(); }});
  routes.alias("/chat/completions");
  routes.add({"POST", "/v1/translate",
              "translation and other sequence-to-sequence output of an encoder-decoder",
              [this](const ExchangePtr& exchange, const std::string&) {
                const auto body = std::make_shared<const TranslateBody>(
                    body_of(exchange, [](const Json& json, std::vector<std::string>* ignored) {
                      return read_translate(json, ignored);
                    }));
                with_model(exchange, body->model,
                           [this, exchange, body](const ServedModelPtr& model) {
                             translate(*this, exchange, *body, model);
                           });
              },
              false, false, [] { return translate_fields().schema(); }});
}

}  // namespace tessera::serve
