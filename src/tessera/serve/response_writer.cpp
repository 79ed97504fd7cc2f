#include "tessera/serve/response_writer.h"

#include <algorithm>

namespace tessera::serve {

ApiError past_deadline() {
  return {504, "deadline_exceeded", "request timeout (--deadline, timeout_ms)"};
}

bool fail_unless_done(Exchange& exchange, FinishStatus ending, const std::exception_ptr& error) {
  switch (ending) {
    case FinishStatus::done:
      return false;
    case FinishStatus::disconnected:
      // given up because the client does not read; it may still be connected
      if (exchange.streams()) exchange.end_events(false);
      return true;
    case FinishStatus::deadline:
      exchange.fail(past_deadline());
      return true;
    case FinishStatus::shutdown:
      exchange.fail({503, "server_shutting_down", "server is shutting down", "", 10});
      return true;
    case FinishStatus::failed:
      break;
  }
  const ApiError told = api_error_of(error);
  exchange.fail(told);
  if (told.status() >= 500) complain(error);
  return true;
}

ResponseWriter::ResponseWriter(ExchangePtr exchange,
                               ServedModelPtr model,
                               ResponseOptions options,
                               size_t texts)
    : exchange_(std::move(exchange)),
      model_(std::move(model)),
      options_(std::move(options)),
      texts_(texts) {
  if (!options_.reply) return;
  for (Text& text : texts_) {
    text.reader.emplace(*options_.reply);
    text.within = options_.reply->thinking;
  }
}

std::string ResponseWriter::bytes_of(int64_t id) const {
  const text::Tokenizer& tokenizer = model_->tokenizer();
  const auto token = static_cast<int32_t>(id);
  if (auto bytes = tokenizer.bytes_of(token)) return std::move(*bytes);
  return tokenizer.decode(std::span(&token, 1), false);  // special tokens are written by name
}

LogprobJson ResponseWriter::logprob_of(const infer::PositionLogprobs& logprobs) const {
  LogprobJson out{bytes_of(logprobs.chosen.id), logprobs.chosen.log_p};
  for (const infer::TokenLogprob& other : logprobs.top)
    out.top.push_back({bytes_of(other.id), other.log_p});
  return out;
}

void ResponseWriter::listen(infer::Request& request, size_t index) {
  Text* const text = &texts_[index];
  // the writer must outlive the callbacks
  request.on_token = [self = shared_from_this(), text](int64_t id) {
    if (self->first_ == Exchange::Clock::time_point{}) self->first_ = Exchange::Clock::now();
    ++text->tokens;
    if (text->within) ++text->reasoning_tokens;
    if (self->options_.token_ids) text->ids.push_back(id);
  };
  request.on_read = [self = shared_from_this(), text](int64_t cached) { text->cached = cached; };
  request.on_text = [self = shared_from_this(), text](std::string_view piece) {
    add(*text, piece);
  };
  if (options_.logprobs)
    request.on_logprobs = [self = shared_from_this(),
                           text](const infer::PositionLogprobs& logprobs) {
      text->logprobs.push_back(self->logprob_of(logprobs));
    };
}

void ResponseWriter::take_in(Text& text, text::Reply reply) {
  if (!reply.reasoning.empty()) text.within = true;
  if (!reply.content.empty() || !reply.calls.empty()) text.within = false;
  text.reasoning += reply.reasoning;
  text.text += reply.content;
  text.called = text.called || !reply.calls.empty();
  for (text::ToolCall& call : reply.calls) text.calls.push_back(std::move(call));
}

void ResponseWriter::add(Text& text, std::string_view piece) {
  if (text.reader)
    take_in(text, text.reader->push(piece));
  else
    text.text += piece;
}

/// Begins a text, with the echoed prompt first.
void ResponseWriter::begin(Text& text, size_t index) {
  if (std::exchange(text.begun, true)) return;
  if (options_.stream) exchange_->begin_events();
  if (options_.stream && options_.frames.chat)
    exchange_->event(options_.frames.role(static_cast<int64_t>(index)));
  if (!options_.echo.empty())
    text.text.insert(0, options_.echo[index / static_cast<size_t>(options_.choices)]);
}

Choice ResponseWriter::take(Text& text, size_t index) {
  Choice choice{.index = static_cast<int64_t>(index),
                .text = std::exchange(text.text, {}),
                .reasoning = std::exchange(text.reasoning, {}),
                .offset = text.offset};
  text.offset += characters(choice.text);
  if (!options_.asked.empty()) text.generated += choice.text;
  choice.calls = std::exchange(text.calls, {});
  choice.first_call = text.given_calls;
  text.given_calls += static_cast<int64_t>(choice.calls.size());
  if (options_.logprobs) choice.logprobs = std::exchange(text.logprobs, {});
  if (options_.token_ids) choice.token_ids = std::exchange(text.ids, {});
  return choice;
}

std::string limit_of(const infer::Generation& text) {
  return infer::limit_name(text.limit, "max_tokens");
}

void ResponseWriter::begin() {
  begun_ = Exchange::Clock::now();
}

/// Timings in llama.cpp's format; of prompts only computed tokens count.
Json ResponseWriter::timings(const Usage& usage) const {
  const auto ms = [](Exchange::Clock::time_point from, Exchange::Clock::time_point to) {
    return std::chrono::duration<double, std::milli>(to - from).count();
  };
  const auto now = Exchange::Clock::now();
  const bool said = first_ != Exchange::Clock::time_point{};
  const double prompt = ms(begun_, said ? first_ : now), made = said ? ms(first_, now) : 0;
  const int64_t read = usage.prompt_tokens - usage.cached_tokens;
  Json out = {{"queue_ms", ms(exchange_->arrived(), begun_)}, {"cache_n", usage.cached_tokens}};
  const auto add = [&](const std::string& name, int64_t n, double time) {
    out[name + "_n"] = n;
    out[name + "_ms"] = time;
    out[name + "_per_token_ms"] = n > 0 ? time / static_cast<double>(n) : 0;
    out[name + "_per_second"] = time > 0 ? 1e3 * static_cast<double>(n) / time : 0;
  };
  add("prompt", read, prompt);
  add("predicted", usage.completion_tokens, made);
  if (usage.drafted_tokens > 0) {
    out["draft_n"] = usage.drafted_tokens;
    out["draft_n_accepted"] = usage.accepted_tokens;
  }
  return out;
}

/// Usage of all sequences of the request so far.
Usage ResponseWriter::usage_so_far() const {
  Usage usage;
  for (size_t i = 0; i < texts_.size(); ++i) {
    // a prompt counts once for all its choices
    if (i % static_cast<size_t>(options_.choices) == 0) usage.cached_tokens += texts_[i].cached;
    usage.completion_tokens += texts_[i].tokens;
  }
  usage.prompt_tokens = options_.prompt_tokens;
  return usage;
}

void ResponseWriter::flush() {
  if (!options_.stream) return;
  // log-probabilities of an echoed prompt come after its prefill
  if (!options_.echo_ids.empty()) return;
  const size_t unsent = exchange_->unsent();
  if (unsent > options_.limits.merge_bytes) return;
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (!texts_[i].has_news()) continue;
    begin(texts_[i], i);
    const Choice piece = take(texts_[i], i);
    Json event = options_.frames.chunk(piece);
    if (options_.content) event.update({{"content", piece.text}, {"stop", false}});
    if (options_.timings) event["timings"] = timings(usage_so_far());
    exchange_->event(event);
  }
}

/// The end of a text in the format of llama.cpp's clients.
Json ResponseWriter::content_of(const Choice& choice, const Usage& usage) {
  const bool word = choice.stop_reason.is_string();
  return {{"content", choice.text},
          {"stop", true},
          {"stop_type", choice.finish_reason == "length" ? "limit"
                        : word                           ? "word"
                                                         : "eos"},
          {"stopping_word", word ? choice.stop_reason : Json("")},
          {"truncated", choice.limit == "context"},
          {"tokens_evaluated", usage.prompt_tokens},
          {"tokens_predicted", usage.completion_tokens},
          {"tokens_cached", usage.cached_tokens}};
}

/// Estimated bytes of buffered text.
size_t ResponseWriter::held() const {
  size_t bytes = 0;
  for (const Text& text : texts_) {
    constexpr size_t kChance = 64;  // as JSON
    const size_t top = text.logprobs.empty() ? 0 : text.logprobs.front().top.size();
    bytes += text.text.size() + text.reasoning.size() + text.logprobs.size() * kChance * (1 + top) +
             text.ids.size() * sizeof(int64_t);
  }
  return bytes;
}

bool ResponseWriter::client_is_slow() {
  if (!options_.echo_ids.empty()) return false;  // as in flush(): everything is sent at the end
  const size_t unsent = exchange_->unsent();
  slow_ =
      slow_ ? unsent > options_.limits.merge_bytes : unsent + held() > options_.limits.rest_bytes;
  return slow_;
}

/// Log-probabilities of the prompt's tokens; the first has none.
void ResponseWriter::echo_logprobs(Text& text, size_t index, const infer::Generation& made) {
  const size_t prompt = index / static_cast<size_t>(options_.choices);
  const std::vector<int64_t>& ids = options_.echo_ids[prompt];
  std::vector<LogprobJson> all;
  for (size_t i = 0; i < ids.size(); ++i) {
    LogprobJson chance{.bytes = bytes_of(ids[i]), .unknown = i == 0};
    if (i > 0 && i - 1 < made.log_p.size()) {
      chance.log_p = made.log_p[i - 1];
      if (i - 1 < made.target_top.size())
        for (const infer::TokenLogprob& other : made.target_top[i - 1])
          chance.top.push_back({bytes_of(other.id), other.log_p});
    }
    all.push_back(std::move(chance));
  }
  text.logprobs.insert(text.logprobs.begin(), all.begin(), all.end());
}

void ResponseWriter::end(std::vector<infer::Generation> made,
                         FinishStatus ending,
                         const std::exception_ptr& error) {
  Exchange::Counts counts{.model = model_->entry.id};
  Usage usage;
  for (size_t i = 0; i < made.size(); ++i) {
    // a prompt counts once for all its choices
    if (i % static_cast<size_t>(options_.choices) == 0) {
      usage.prompt_tokens += made[i].prompt_tokens;
      usage.cached_tokens += made[i].cached_tokens;
    }
    usage.completion_tokens += static_cast<int64_t>(made[i].token_ids.size());
    usage.reasoning_tokens += texts_[i].reasoning_tokens;
    usage.drafted_tokens += made[i].drafted_tokens;
    usage.accepted_tokens += made[i].accepted_tokens;
  }
  counts.prompt_tokens = usage.prompt_tokens;
  counts.cached_tokens = usage.cached_tokens;
  counts.generated_tokens = usage.completion_tokens;
  if (first_ != Exchange::Clock::time_point{})
    counts.first_token_seconds =
        std::chrono::duration<double>(first_ - exchange_->arrived()).count();
  counts.finish = ending == FinishStatus::disconnected ? "cancelled"
                  : ending == FinishStatus::deadline   ? "deadline"
                  : ending == FinishStatus::shutdown   ? "shutdown"
                  : ending == FinishStatus::failed     ? "error"
                  : made.empty()                       ? ""
                                                       : made[0].finish_reason;
  exchange_->count(counts);
  if (fail_unless_done(*exchange_, ending, error)) return;
  std::vector<Choice> choices;
  for (size_t i = 0; i < made.size(); ++i) {
    Text& text = texts_[i];
    const infer::Generation& one = made[i];
    if (text.reader) take_in(text, text.reader->finish());
    begin(text, i);
    if (!options_.echo_ids.empty())
      echo_logprobs(text, i, made[i - i % static_cast<size_t>(options_.choices)]);
    Choice choice = take(text, i);
    choice.finish_reason =
        text.called && one.finish_reason == "stop" ? "tool_calls" : one.finish_reason;
    choice.limit = limit_of(one);
    if (!one.stop_string.empty())
      choice.stop_reason = one.stop_string;
    else if (one.stop_id && std::find(options_.stop_ids.begin(), options_.stop_ids.end(),
                                      *one.stop_id) != options_.stop_ids.end())
      choice.stop_reason = *one.stop_id;
    if (!options_.asked.empty())
      choice.sources =
          options_.asked[i / static_cast<size_t>(options_.choices)].sources(text.generated);
    choices.push_back(std::move(choice));
  }
  if (!options_.stream) {
    Json whole = options_.frames.whole(choices, usage);
    whole["timings"] = timings(usage);
    if (options_.content && !choices.empty()) whole.update(content_of(choices[0], usage));
    return exchange_->answer(whole);
  }
  // the last event has the timings
  for (size_t i = 0; i < choices.size(); ++i) {
    Json event = options_.frames.chunk(choices[i]);
    if (options_.content) event.update(content_of(choices[i], usage));
    if (i + 1 == choices.size() && !options_.frames.usage) event["timings"] = timings(usage);
    exchange_->event(event);
  }
  if (options_.frames.usage) {
    Json event = options_.frames.usage_event(usage);
    event["timings"] = timings(usage);
    exchange_->event(event);
  }
  exchange_->end_events(true);
}

}  // namespace tessera::serve
