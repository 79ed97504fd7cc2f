// Fine-tuning plans for conversations and preferences.
#include <algorithm>
#include <limits>

#include <fmt/chrono.h>
#include <fmt/ranges.h>

#include "tessera/text/chat/chat_template.h"
#include "tessera/text/tokenizer/vocabularies.h"
#include "tessera/train/data/data_file.h"
#include "tessera/train/data/example_lines.h"
#include "tessera/train/data/sample_view.h"
#include "tessera/train/objective/chat/chat_source.h"
#include "tessera/train/objective/preference/preference_source.h"
#include "tessera/train/recipe/finetune_planner.h"
#include "tessera/train/recipe/start.h"

namespace tessera::train {
namespace {

constexpr int64_t kLongest = 2048, kAnyLength = std::numeric_limits<int32_t>::max();

/// Tokens with a target, as text.
std::string learned_text(const ChatTokens& chat, const text::Tokenizer& tokenizer) {
  std::vector<int64_t> ids;
  for (const int64_t target : chat.targets)
    if (target >= 0) ids.push_back(target);
  return excerpt(shown(ids, &tokenizer));
}

}  // namespace

int64_t Planner::measure(const std::function<void(const Json&, const std::string&)>& visit) {
  constexpr int64_t kSome = 1000;
  int64_t n = 0;
  for (const std::string& path : o_.data) {
    for_each_example(path, keyed_format(path),
                     [&](const Json& example, const std::string& where, size_t) {
                       if (o_.cancel != nullptr) o_.cancel->check("data");
                       if (n++ < kSome) visit(example, where);
                     });
  }
  if (n == 0)
    fail(ErrorKind::input, verb(), "{}: no example; expected at least one", o_.data.front());
  return n;
}

std::optional<std::string> Planner::template_for_messages() {
  if (!tokenizer_->chat_template().empty()) return std::nullopt;
  std::string format = "zephyr";
  for (const auto& [token, name] : text::known_tokens().chat_formats)
    if (tokenizer_->id(token)) {
      format = name;
      break;
    }
  say("chat template: \"{}\", since the tokenizer has none of its own{}", format,
      key_of_recipe("objective.format"));
  return format;
}

std::optional<std::string> Planner::template_date() {
  if (tokenizer_->chat_template().find("strftime_now") == std::string::npos) return std::nullopt;
  const std::string today = fmt::format("{:%Y-%m-%d}", fmt::gmtime(*text::local_time()));
  say("date in the chat template: {} in all conversations{}", today,
      key_of_recipe("objective.date"));
  return today;
}

void Planner::plan_chat() {
  if (spec_.causal() == false)
    fail(ErrorKind::usage, verb(), "{} is an encoder, which writes no answers; expected a decoder",
         o_.model);
  ChatRecipe how;
  const auto layout = chat_layout_of(first_, how.messages_key);
  if (layout) say_format(train::described(*layout, first_, how.messages_key));
  // strings under TRL's keys are continued as plain text, others become messages
  const bool plain = o_.task.empty() && prompt_and_completion(first_) &&
                     first_.contains("prompt") && first_.contains("completion");
  recipe_["objective"] = {{"type", "chat"}};
  if (plain) how.format = "none";
  // checkpoints get the template, where the model has a tokenizer of its own (write_chat_format)
  const bool written = tokenizer_of_start(o_.model) != "bytes";
  out_.chats = !plain && (written || !tokenizer_->chat_template().empty());
  if (plain)
    say("task: supervised fine-tuning on prompt and completion, without the chat template "
        "(--task chat: as messages)");
  else
    say("task: supervised fine-tuning on chats, by the chat template (--task)");
  if (!plain) how.format = template_for_messages();
  if (how.format) recipe_["objective"]["format"] = *how.format;
  if (const auto date = plain ? std::nullopt : template_date())
    recipe_["objective"]["date"] = how.date = *date;
  data_["format"] = spec::enum_name(keyed_format(o_.data.front()));
  const ChatReader reader(how, *tokenizer_, kAnyLength);
  std::vector<int64_t> lengths;
  samples_ = measure([&](const Json& example, const std::string& where) {
    const ChatTokens chat = reader.of(example, where);
    if (lengths.empty())
      say("first example: {}; trained on: {}", excerpt(shown(chat.ids, &*tokenizer_)),
          learned_text(chat, *tokenizer_));
    lengths.push_back(std::ssize(chat.ids));
  });
  set_length(lengths, kLongest);
  hold_out(samples_);
  batch_ = o_.batch.value_or(8);
}

void Planner::plan_preference() {
  if (spec_.causal() == false)
    fail(ErrorKind::usage, verb(), "{} is an encoder, which writes no answers; expected a decoder",
         o_.model);
  for (const char* key : {"chosen", "rejected"})
    if (!first_.contains(key))
      fail(ErrorKind::usage, verb(),
           "--task preference: {} has no \"{}\"; found {}; expected \"chosen\" and \"rejected\"",
           o_.data.front(), key, fmt::join(names_, ", "));
  PreferenceRecipe how;
  say_format("preferences (\"chosen\", \"rejected\")");
  recipe_["objective"] = {{"type", "preference"}};
  std::optional<text::ChatPrompt> made;
  const PromptsOfPairs prompts = [&]() -> const text::ChatPrompt& {
    if (!made) {
      how.format = template_for_messages();
      if (const auto date = template_date()) recipe_["objective"]["date"] = how.date = *date;
      made.emplace(prompts_of({.format = how.format, .date = how.date}, *tokenizer_));
    }
    return *made;
  };
  data_["format"] = spec::enum_name(keyed_format(o_.data.front()));
  std::vector<int64_t> lengths;
  samples_ = measure([&](const Json& example, const std::string& where) {
    const PreferencePair pair = read_pair(example, how, where, prompts);
    const PairTokens tokens = tokens_of(pair, *tokenizer_, tokenizer_->eos(), prompts);
    if (lengths.empty()) {
      say("task: preference optimization (DPO), {} the chat template (--task){}",
          pair.rendered ? "by" : "without", key_of_recipe("objective.loss"));
      out_.chats = pair.rendered && (how.format ? tokenizer_of_start(o_.model) != "bytes"
                                                : !tokenizer_->chat_template().empty());
      say("first example: {}; chosen: {}; rejected: {}",
          excerpt(shown(tokens.prompt, &*tokenizer_)), excerpt(shown(tokens.chosen, &*tokenizer_)),
          excerpt(shown(tokens.rejected, &*tokenizer_)));
    }
    lengths.push_back(std::ssize(tokens.prompt) - 1 +
                      std::max(std::ssize(tokens.chosen), std::ssize(tokens.rejected)));
  });
  if (how.format) recipe_["objective"]["format"] = *how.format;
  set_length(lengths, kLongest);
  hold_out(samples_);
  batch_ = o_.batch.value_or(8);
}

}  // namespace tessera::train
