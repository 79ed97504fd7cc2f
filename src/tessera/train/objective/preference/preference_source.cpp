#include "tessera/train/objective/preference/preference_source.h"

#include <algorithm>

#include <fmt/ranges.h>

#include "tessera/model/call_plan.h"
#include "tessera/train/data/data_file.h"
#include "tessera/train/data/example_lines.h"
#include "tessera/train/objective/chat/chat_source.h"

namespace tessera::train {
namespace {

/// Two conversations that differ only in their last message, an answer.
PreferencePair pair_of(const Conversation& chosen,
                       const Conversation& rejected,
                       const PreferenceRecipe& how,
                       const std::string& where,
                       const PromptsOfPairs& prompts) {
  const auto bad = [&](const std::string& what) {
    fail(ErrorKind::file, "data",
         "{}: {}; expected conversations that are the same but for the last message, an answer of "
         "the assistant",
         where, what);
  };
  const Json &one = chosen.messages, &other = rejected.messages;
  if (one.size() != other.size())
    bad(fmt::format("\"{}\" has {} messages and \"{}\" {}", how.chosen_key, one.size(),
                    how.rejected_key, other.size()));
  for (size_t i = 0; i + 1 < one.size(); ++i)
    if (one[i] != other[i]) bad(fmt::format("message {} differs", i + 1));
  for (const Json* talk : {&one, &other}) {
    if (!is_answer(talk->back()))
      bad(fmt::format("the last message is of \"{}\"", talk->back()["role"].get<std::string>()));
    if (!is_learned(talk->back())) bad("the last message is marked as not learned");
  }
  if (one.size() < 2) bad("there is no message before the answers");
  try {
    AnsweredPrompt a = last_answer(chosen, prompts()), b = last_answer(rejected, prompts());
    if (a.prompt.text != b.prompt.text) bad("the chat template writes the prompt by its answer");
    return {std::move(a.prompt), std::move(a.answer), std::move(b.answer), true};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) throw;
    fail(ErrorKind::file, "data", "{}: {}", where, without_place(error, "data"));
  }
}

Json one_message(const char* role, const Json& content) {
  return Json::array({{{"role", role}, {"content", content}}});
}

/// The common prompt: a string, a list of messages, or null if it is part of the answers.
/// Conversations and instructions, as in LLaMA-Factory, are messages too.
Json prompt_of(const Json& json, const PreferenceRecipe& how, const std::string& where) {
  if (json.contains(how.prompt_key) && !json[how.prompt_key].is_null())
    return json[how.prompt_key].is_string() ? json[how.prompt_key]
                                            : messages_at(json, how.prompt_key, where);
  if (json.contains("conversations")) return messages_at(json, "conversations", where);
  if (json.contains("instruction")) return one_message("user", alpaca_prompt(json, where));
  return nullptr;
}

/// Two strings after a prompt; without one it is their common prefix (as in TRL's
/// extract_prompt()), and a space before the difference belongs to the answers.
PreferencePair plain_pair(const Json& prompt, const Json& chosen, const Json& rejected) {
  auto a = chosen.get<std::string>(), b = rejected.get<std::string>();
  if (prompt.is_string()) return {{prompt.get<std::string>(), ""}, {a, ""}, {b, ""}};
  size_t same =
      static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const auto within_character = [](const std::string& text, size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80;
  };
  while (same > 0 && (within_character(a, same) || within_character(b, same))) --same;
  if (same > 0 && a[same - 1] == ' ') --same;
  return {{a.substr(0, same), ""}, {a.substr(same), ""}, {b.substr(same), ""}};
}

/// A pair truncated to the maximum length; nullopt if no training is possible.
struct Trimmed {
  bool too_long = false, equal = false;
};
Trimmed trim(PairTokens& pair, int64_t length) {
  if (pair.chosen == pair.rejected) return {.equal = true};
  // the last token of an answer is no input
  const int64_t answer = std::max(std::ssize(pair.chosen), std::ssize(pair.rejected)) - 1,
                room = length - answer;
  if (room < 1) return {.too_long = true};
  // both answers after the same prompt
  if (std::ssize(pair.prompt) > room)
    pair.prompt.erase(pair.prompt.begin(), pair.prompt.end() - room);
  return {};
}

class Pairs final : public PreferenceSource {
 public:
  Pairs(std::vector<PairTokens> pairs, int64_t train, bool given, std::string key, int64_t seed)
      : pairs_(std::move(pairs)),
        train_(train),
        given_(given),
        key_(std::move(key)),
        order_(train, static_cast<uint64_t>(seed)) {}

  PackedBatch train(int64_t first, int64_t count, std::vector<int64_t>&) const override {
    std::vector<int64_t> numbers;
    for (int64_t sample = first; sample < first + count; ++sample)
      numbers.push_back(pair_of(sample));
    return numbered(numbered_pairs(numbers), first);
  }
  int64_t valid_samples() const override { return pairs() - train_; }
  PackedBatch valid(const std::vector<int64_t>& samples) const override {
    std::vector<int64_t> numbers;
    for (const int64_t sample : samples) numbers.push_back(train_ + sample);
    return numbered_pairs(numbers);
  }
  double tokens_per_byte() const override { return 0; }
  const std::string& key() const override { return key_; }

  int64_t pairs() const override { return std::ssize(pairs_); }
  int64_t pair_of(int64_t sample) const override { return order_.at(sample); }
  PackedBatch numbered_pairs(const std::vector<int64_t>& numbers) const override {
    PackedBatch out;
    for (int64_t row = 0; row < std::ssize(numbers); ++row) {
      const PairTokens& pair = pairs_.at(static_cast<size_t>(numbers[static_cast<size_t>(row)]));
      add(out, row, pair.prompt, pair.chosen, "chosen");
      add(out, row, pair.prompt, pair.rejected, "rejected");
    }
    out.items = numbers;
    out.n_targets =
        std::ssize(out.targets) - std::count(out.targets.begin(), out.targets.end(), int64_t{-1});
    return out;
  }

 private:
  void add(PackedBatch& out,
           int64_t row,
           const std::vector<int64_t>& prompt,
           const std::vector<int64_t>& answer,
           const char* name) const {
    out.pieces.push_back({row, std::ssize(out.ids), std::ssize(prompt) + std::ssize(answer) - 1,
                          given_ ? std::ssize(prompt) : 0});
    out.ids.insert(out.ids.end(), prompt.begin(), prompt.end());
    out.ids.insert(out.ids.end(), answer.begin(), answer.end() - 1);
    out.targets.insert(out.targets.end(), prompt.size() - 1, -1);
    out.targets.insert(out.targets.end(), answer.begin(), answer.end());
    out.names.emplace_back(name);
  }

  std::vector<PairTokens> pairs_;
  int64_t train_;
  bool given_;  // prompts are bidirectional prefixes
  std::string key_;
  PairOrder order_;
};

}  // namespace

PreferencePair read_pair(const Json& json,
                         const PreferenceRecipe& how,
                         const std::string& where,
                         const PromptsOfPairs& prompts) {
  const auto bad = [&](const std::string& what) {
    fail(ErrorKind::file, "data",
         "{}: {}; expected an object with \"{}\", \"{}\" and \"{}\", strings or lists of messages",
         where, what, how.prompt_key, how.chosen_key, how.rejected_key);
  };
  if (!json.is_object()) bad(fmt::format("found {}", found_kind(json)));
  const auto is_talk = [&](const std::string& key) {
    if (!json.contains(key)) bad(fmt::format("\"{}\" is missing", key));
    if (!json[key].is_string() && !json[key].is_structured())
      bad(fmt::format("\"{}\" is {}", key, found_kind(json[key])));
    return !json[key].is_string();
  };
  const bool talks = is_talk(how.chosen_key);
  if (is_talk(how.rejected_key) != talks)
    bad(fmt::format("\"{}\" is {} and \"{}\" {}", how.chosen_key, found_kind(json[how.chosen_key]),
                    how.rejected_key, found_kind(json[how.rejected_key])));
  const Json before = prompt_of(json, how, where);
  if (!talks && !before.is_array()) {
    PreferencePair out = plain_pair(before, json[how.chosen_key], json[how.rejected_key]);
    if (out.prompt.text.empty())
      bad(before.is_null()
              ? fmt::format("\"{}\" is missing, and the answers do not begin alike", how.prompt_key)
              : fmt::format("\"{}\" is empty", how.prompt_key));
    return out;
  }
  const Json first = before.is_string() ? one_message("user", before)
                     : before.is_null() ? Json::array()
                                        : before;
  const auto conversation = [&](const std::string& key) {
    Json own = talks ? messages_at(json, key, where) : one_message("assistant", json[key]);
    // whole conversations include the prompt
    if (is_answer(own.front())) own.insert(own.begin(), first.begin(), first.end());
    return with_tools(std::move(own), json, where);
  };
  return train::pair_of(conversation(how.chosen_key), conversation(how.rejected_key), how, where,
                        prompts);
}

PairTokens tokens_of(const PreferencePair& pair,
                     const text::Tokenizer& tokenizer,
                     std::optional<int32_t> end,
                     const PromptsOfPairs& prompts) {
  const auto encode = [&](const text::MarkedText& text, bool begins) {
    const std::vector<int32_t> ids = pair.rendered
                                         ? prompts().encode(text)
                                         : tokenizer.encode(text.text, {.add_special = begins});
    return std::vector<int64_t>(ids.begin(), ids.end());
  };
  PairTokens out{encode(pair.prompt, true), encode(pair.chosen, false),
                 encode(pair.rejected, false)};
  if (pair.rendered) return out;
  // an end token added by the tokenizer would end the prompt
  if (const auto eos = tokenizer.eos(); eos && out.prompt.size() > 1 && out.prompt.back() == *eos)
    out.prompt.pop_back();
  if (end)
    for (auto* answer : {&out.chosen, &out.rejected}) answer->push_back(*end);
  return out;
}

std::unique_ptr<PreferenceSource> open_pairs(const DataPlan& plan,
                                             const PreferenceRecipe& how,
                                             const text::Tokenizer& tokenizer,
                                             const CancelToken* cancel) {
  const auto end = separator_of(plan.data.files(), tokenizer);
  std::optional<text::ChatPrompt> made;
  const PromptsOfPairs prompts = [&]() -> const text::ChatPrompt& {
    if (!made) made.emplace(prompts_of({.format = how.format, .date = how.date}, tokenizer));
    return *made;
  };
  Sha256 key;
  std::vector<PairTokens> train, valid;
  int64_t too_long = 0, equal = 0;
  for_examples(plan.data.files(), key, cancel, [&](const ExampleLine& line) {
    PairTokens pair =
        tokens_of(read_pair(line.object, how, line.where, prompts), tokenizer, end, prompts);
    for (const auto* part : {&pair.prompt, &pair.chosen, &pair.rejected}) {
      if (part->empty())
        fail(ErrorKind::input, "data", "{}: \"{}\" has no token; expected some", line.where,
             part == &pair.prompt   ? how.prompt_key
             : part == &pair.chosen ? how.chosen_key
                                    : how.rejected_key);
      const int64_t largest = *std::max_element(part->begin(), part->end());
      if (largest >= plan.spec.vocab)
        fail(ErrorKind::input, "data", "{}: token id {}; the spec has a vocabulary of {}",
             line.where, largest, plan.spec.vocab);
    }
    const Trimmed trimmed = trim(pair, plan.train.length);
    too_long += trimmed.too_long ? 1 : 0;
    equal += trimmed.equal ? 1 : 0;
    if (!trimmed.too_long && !trimmed.equal)
      (line.held_out ? valid : train).push_back(std::move(pair));
  });
  std::vector<std::string> notes;
  if (too_long > 0)
    notes.push_back(fmt::format("{} pair{} skipped: prompt and answer exceed train.length = {}",
                                too_long, too_long == 1 ? "" : "s", plan.train.length));
  if (equal > 0)
    notes.push_back(fmt::format("{} pair{} skipped: equal answers", equal, equal == 1 ? "" : "s"));
  try {
    check_examples(plan.data.files(), train.size(), valid.size(), "pair");
  } catch (const Error& error) {
    if (notes.empty()) throw;
    fail(error.kind(), "data", "{}: {}", without_place(error, "data"), fmt::join(notes, ", "));
  }
  const int64_t to_learn = std::ssize(train);
  train.insert(train.end(), std::make_move_iterator(valid.begin()),
               std::make_move_iterator(valid.end()));
  // tokens depend on the texts and the tokenizer: all of them are hashed
  for (const PairTokens& pair : train)
    for (const auto* part : {&pair.prompt, &pair.chosen, &pair.rejected}) {
      key.update(std::to_string(part->size()));
      key.update(std::as_bytes(std::span(*part)));
    }
  key.update(std::to_string(to_learn));
  auto source =
      std::make_unique<Pairs>(std::move(train), to_learn, model::CallPlan(plan.spec).reads_given(),
                              key.finish(), plan.train.seed);
  for (std::string& line : notes) source->remark(std::move(line));
  return source;
}

}  // namespace tessera::train
