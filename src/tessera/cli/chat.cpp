// A conversation on the command line.
#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cmath>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <iostream>

#include <unistd.h>

#include <fmt/ranges.h>

#include "tessera/base/mapped_file.h"
#include "tessera/base/threads.h"
#include "tessera/cli/constraint_flags.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/speculation_flags.h"
#include "tessera/cli/kv_flags.h"
#include "tessera/cli/line_editor.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/product_flags.h"
#include "tessera/cli/retrieve_flags.h"
#include "tessera/cli/sampling_flags.h"
#include "tessera/format/file_source.h"
#include "tessera/infer/engine/conversation.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/load_model.h"
#include "tessera/text/chat/chat_formats.h"
#include "tessera/text/chat/chat_prompt.h"

namespace tessera::cli {
namespace chat_verb {

struct ChatArgs {
  LoadFlags loading;
  std::vector<std::string> adapters;
  std::string model, question, system, template_file, load, date = "today";
  infer::GenerateOptions generate;
  SpeculationFlags speculation;
  KvFlags kv;
  ProductFlags products;
  DeviceFlag device;
  RetrieveFlags retrieve;
  SamplingFlags sampling;
  ConstraintFlags constraint;
  bool probabilities = false, no_history = false;
  int64_t cache_mib = 256;
  int threads = 0;
};

constexpr std::array kCommands = {"/help", "/exit", "/reset", "/system", "/retry", "/edit",
                                  "/undo", "/save", "/load",  "/set",    "/show",  "/tokens"};

/// Where the lines of earlier conversations are, "" where there is no place for them.
std::filesystem::path history_file() {
  const char *const state = std::getenv("XDG_STATE_HOME"), *const home = std::getenv("HOME");
  if (state != nullptr && *state == '/')
    return std::filesystem::path(state) / "tessera/chat_history";
  if (home == nullptr || *home != '/') return {};
  return std::filesystem::path(home) / ".local/state/tessera/chat_history";
}

// Ctrl-C ends the answer that is being made; twice in a row, the program.
std::atomic<CancelToken*> running{nullptr};
std::atomic<int> presses{0};

void on_interrupt(int) {
  CancelToken* const answer = running.load();
  if (presses.fetch_add(1) > 0) {
    LineEditor::restore();
    _exit(128 + SIGINT);
  }
  constexpr char kHint[] = "\n(Ctrl-C again quits)\n";
  if (answer != nullptr)
    answer->request(SIGINT);
  else if (::write(STDERR_FILENO, kHint, sizeof kHint - 1) < 0)
    _exit(128 + SIGINT);
}

/// Prints an answer as it comes: what a terminal would obey is shown instead, and what the model
/// thinks before it answers is dim.
class Printer {
 public:
  /// `thinking`: the prompt has opened the thoughts.
  Printer(bool thinking, text::ReasoningTags tags)
      : colours_(isatty(STDOUT_FILENO) != 0), thinking_(thinking), tags_(std::move(tags)) {
    if (thinking_ && colours_) fmt::print("\x1b[2m");
  }
  void add(std::string_view text) {
    waiting_ += text;
    for (;;) {
      const std::string& tag = thinking_ ? tags_.close : tags_.open;
      const size_t at = waiting_.find(tag);
      if (at == std::string::npos) {
        size_t held = std::min(tag.size() - 1, waiting_.size());
        while (held > 0 && waiting_.compare(waiting_.size() - held, held, tag, 0, held) != 0)
          --held;
        show(waiting_.size() - held);
        return;
      }
      if (thinking_) {
        show(at + tag.size());
        if (colours_) fmt::print("\x1b[0m");
      } else {
        show(at);
        if (colours_) fmt::print("\x1b[2m");
        show(tag.size());
      }
      thinking_ = !thinking_;
    }
  }
  void end() {
    show(waiting_.size());
    if (thinking_ && colours_) fmt::print("\x1b[0m");
    fmt::print("\n");
    flush_output();
  }

 private:
  void show(size_t n) {
    std::string out;
    for (size_t i = 0; i < n; ++i) {
      const auto c = static_cast<uint8_t>(waiting_[i]);
      const bool c1 = c == 0xC2 && i + 1 < n && static_cast<uint8_t>(waiting_[i + 1]) < 0xA0;
      if (c1) ++i;
      if (c1 || c == 0x7F || (c < 0x20 && c != '\n' && c != '\t'))
        out += "\xEF\xBF\xBD";
      else
        out += static_cast<char>(c);
    }
    fmt::print("{}", out);
    flush_output();
    waiting_.erase(0, n);
  }
  bool colours_, thinking_;
  text::ReasoningTags tags_;
  std::string waiting_;
};

class Chat {
 public:
  explicit Chat(ChatArgs& args)
      : args_(args),
        loaded_(args.device.loaded([&] {
          return infer::load_model(args.model, args.kv.loading(args.loading), args.adapters,
                                   args.products.products());
        })),
        prompts_(make_prompts()) {
    say_differences(loaded_.source);
    args_.products.check(loaded_.model);
    args_.kv.check(loaded_.model, args_.products);
    auto& g = args_.generate;
    const auto defaults = args_.sampling.fill(loaded_.generation, infer::TextKind::conversation, g);
    g.kv = args_.kv.options();
    g.speculation =
        args_.speculation.load(args_.loading.options(), args_.products.arithmetic(), args_.device);
    g.keep_first = args_.kv.keep_first;
    g.stop_ids = prompts_.ends();
    for (const int64_t id : args_.sampling.ends(loaded_))
      if (std::find(g.stop_ids.begin(), g.stop_ids.end(), id) == g.stop_ids.end())
        g.stop_ids.push_back(id);
    g.constraint = args_.constraint.make(args_.model, &*loaded_.tokenizer);
    infer::take_forced_tokens(defaults, false, true, g);
    SamplingFlags::print(g, std::nullopt, defaults);
    if (args_.cache_mib > 0 && loaded_.model.spec().no_state_reason().empty())
      g.prefix_cache = &cache_.emplace(
          loaded_.model, infer::PrefixCacheOptions{.budget_bytes = args_.cache_mib << 20});
    if (args_.retrieve.on()) passages_.emplace(args_.retrieve, args_.loading);
    if (!args_.load.empty()) history_ = infer::Conversation::load(args_.load);
    if (!args_.system.empty()) history_.set_system(args_.system);
  }

  int run() {
    LineEditor editor({kCommands.begin(), kCommands.end()},
                      args_.no_history ? std::filesystem::path() : history_file());
    editor_ = &editor;
    std::signal(SIGINT, on_interrupt);
    // SIGTERM would wait for the next line, since calls that it interrupts begin again
    struct sigaction ends {};
    sigaction(SIGTERM, nullptr, &ends);
    ends.sa_flags &= ~SA_RESTART;
    sigaction(SIGTERM, &ends, nullptr);
    if (!args_.question.empty()) {
      say(args_.question == "-" ? all_of_input() : args_.question);
      done_ = true;
    }
    if (editor.terminal() && !done_)
      fmt::print(stderr, "/help: commands. Ctrl-C: stop generating. Ctrl-D: quit.\n");
    while (!done_ && !cancel_token().requested()) {
      const std::optional<std::string> text = read(editor);
      presses = 0;
      if (!text) break;
      try {
        if (text->starts_with('/'))
          command(*text);
        else if (text->find_first_not_of(" \t\n") != std::string::npos)
          say(*text);
      } catch (const Error& error) {
        // a conversation continues after a mistake; a script must see it
        if (!editor.terminal() || error.kind() == ErrorKind::internal) throw;
        fmt::print(stderr, "tessera: {}\n", format::printable(error.what(), 2000));
      }
      presses = 0;
    }
    if (cancel_token().requested()) fail(ErrorKind::cancelled, "chat", "stopped on request");
    return kExitOk;
  }

 private:
  text::ChatPrompt make_prompts() const {
    if (!loaded_.tokenizer)
      fail(ErrorKind::usage, "chat", "{} has no tokenizer; expected a model with one", args_.model);
    if (loaded_.model.spec().arch == model::Arch::encoder)
      fail(ErrorKind::usage, "chat",
           "{} is an encoder and does not generate; expected a decoder (tessera embed, classify)",
           args_.model);
    if (loaded_.model.spec().encoder != nullptr)
      fail(ErrorKind::usage, "chat",
           "{} is an encoder-decoder and has no chat; use `tessera generate`", args_.model);
    const std::optional<std::string> named = text::chat_format_source(args_.template_file);
    const std::string source = args_.template_file.empty() ? loaded_.tokenizer->chat_template()
                               : named                     ? *named
                                       : read_text_file(args_.template_file, size_t{1} << 20);
    if (source.empty())
      fail(ErrorKind::usage, "chat",
           "{} has no chat template and is probably a base model; expected --chat-template FILE "
           "or NAME, or use `tessera generate`",
           args_.model);
    return {*loaded_.tokenizer, source,
            args_.template_file.empty() ? args_.model : args_.template_file,
            // one time for the whole conversation
            text::template_clock(args_.date, "--template-date")};
  }

  /// What a pipe brings, as one question.
  static std::string all_of_input() {
    constexpr size_t kMostBytes = size_t{64} << 20;
    std::string all, piece(size_t{1} << 16, '\0');
    while (std::cin.read(piece.data(), std::ssize(piece)) || std::cin.gcount() > 0) {
      all.append(piece, 0, static_cast<size_t>(std::cin.gcount()));
      if (all.size() > kMostBytes)
        fail(ErrorKind::input, "chat", "more than {} MiB of input; expected a question",
             kMostBytes >> 20);
    }
    if (all.find_first_not_of(" \t\r\n") == std::string::npos)
      fail(ErrorKind::input, "chat", "no question in the input; expected a text");
    return all;
  }

  /// A line; after """ as many as there are up to the next one. Nothing at the end.
  static std::optional<std::string> read(LineEditor& editor) {
    std::optional<std::string> text = editor.read("> ");
    if (!text || !text->starts_with("\"\"\"")) return text;
    std::string all = text->substr(3);
    while (!all.ends_with("\"\"\"")) {
      const std::optional<std::string> next = editor.read(". ");
      if (!next)
        fail(ErrorKind::input, "chat",
             "a text that begins with \"\"\" does not end; expected \"\"\" at the end of a line");
      all += "\n" + *next;
    }
    return all.substr(0, all.size() - 3);
  }

  void say(const std::string& text) {
    const infer::Conversation before = history_;
    history_.add("user", text);
    answer_or(before);
  }

  /// What fails leaves the conversation as it was.
  void answer_or(const infer::Conversation& before) {
    try {
      answer();
    } catch (...) {
      history_ = before;
      throw;
    }
  }

  /// The last question alone has its passages.
  text::MarkedText fitting_prompt(PromptWithSources& asked) {
    infer::Conversation::Context context{
        .longest = infer::longest_sequence(loaded_.model.spec(), args_.generate.context),
        .shift = args_.generate.shift};
    if (passages_) {
      asked = passages_->ask(history_.last(), *loaded_.tokenizer);
      context.last = asked.prompt;
    }
    infer::Conversation::Prompt prompt = history_.prompt(prompts_, context);
    if (prompt.dropped_more)
      fmt::print(stderr, "(context full: dropped the oldest {} messages)\n", history_.dropped());
    return std::move(prompt.text);
  }

  /// At least one token must follow a prompt of n.
  void check_room(int64_t n) const {
    const int64_t longest = infer::longest_sequence(loaded_.model.spec(), args_.generate.context);
    if (longest == 0 || n < longest) return;
    fail(ErrorKind::input, "chat", "the conversation has {} tokens, the context {}; expected {}", n,
         longest,
         history_.messages().size() > 2
             ? "/reset or /undo, or --context-shift, which drops the oldest messages"
             : "a shorter question, or a larger --context");
  }

  void answer() {
    PromptWithSources asked;
    const text::MarkedText prompt = fitting_prompt(asked);
    const std::vector<int32_t> read = prompts_.encode(prompt);
    const std::vector<int64_t> ids(read.begin(), read.end());
    check_room(infer::size_of(ids));
    Printer printer(prompts_.thinks(prompt), prompts_.reasoning());
    CancelToken stopped;
    infer::GenerateOptions options = args_.generate;
    options.cancel = &stopped;
    options.on_text = [&](size_t, std::string_view piece) {
      if (cancel_token().requested()) stopped.request();  // SIGTERM
      printer.add(piece);
    };
    running = &stopped;
    infer::Generations result;
    try {
      result = infer::generate(loaded_.model, &*loaded_.tokenizer, {ids}, options);
    } catch (...) {
      running = nullptr;
      throw;
    }
    running = nullptr;
    printer.end();
    const infer::Generation& row = result.rows.at(0);
    if (row.error) std::rethrow_exception(row.error);
    if (row.finish_reason == "length")
      fmt::print(
          stderr, "(stopped after {} tokens: {})\n", row.token_ids.size(),
          row.limit == infer::Limit::context
              ? "context full; /reset starts a new conversation, --context-shift drops old messages"
              : "--max-new-tokens N, in the chat /set max-new-tokens N");
    history_.add("assistant", row.text);
    asked.print_sources(row.text);
    if (args_.probabilities) show_probabilities(ids, row.token_ids);
  }

  /// How likely each token of the answer was, before temperature and filters.
  void show_probabilities(const std::vector<int64_t>& prompt, const std::vector<int64_t>& answer) {
    if (answer.empty()) return;
    infer::Sequence whole{.source = {}, .tokens = prompt};
    whole.tokens.insert(whole.tokens.end(), answer.begin(), answer.end());
    infer::Engine engine(loaded_.model, {.tokenizer = &*loaded_.tokenizer,
                                         .cache = args_.generate.prefix_cache,
                                         .kv = args_.generate.kv});
    const auto id =
        engine.submit(infer::scoring(whole, infer::next_tokens(whole, infer::size_of(prompt))));
    while (engine.step(1024)) {
    }
    const infer::Generation scored = engine.take(id).generation;
    if (scored.error) std::rethrow_exception(scored.error);
    for (size_t i = 0; i < answer.size(); ++i) {
      const auto token = static_cast<int32_t>(answer[i]);
      fmt::print(stderr, "{:6.2f} %  {}\n", 100 * std::exp(scored.log_p.at(i)),
                 format::in_quotes(loaded_.tokenizer->decode(std::span(&token, 1), false)));
    }
  }

  void retry() {
    const infer::Conversation before = history_;
    if (!history_.remove_answer())
      fail(ErrorKind::usage, "chat", "nothing to answer again; expected a question first");
    // or the answer would be the same
    ++args_.generate.sampling.seed;
    if (args_.generate.sampling.temperature == 0)
      fmt::print(stderr, "(at temperature 0 the answer stays the same: /set temperature 0.8)\n");
    answer_or(before);
  }

  /// Replaces the last question by `text`; "" = the question is put into the line to edit.
  void edit(const std::string& text) {
    infer::Conversation rest = history_;
    if (!rest.remove_answer())
      fail(ErrorKind::usage, "chat", "nothing to edit; expected a question first");
    std::string changed = text;
    if (changed.empty()) {
      if (!editor_->terminal())
        fail(ErrorKind::usage, "chat", "/edit: expected the question in other words");
      editor_->begin_with(rest.last());
      changed = read(*editor_).value_or("");
      if (changed.find_first_not_of(" \t\n") == std::string::npos) return;
    }
    const infer::Conversation before = history_;
    rest.remove_question();
    history_ = rest;
    history_.add("user", changed);
    answer_or(before);
  }

  void undo() {
    if (history_.remove_answer()) history_.remove_question();
  }

  void command(const std::string& line) {
    const size_t space = std::min(line.find_first_of(" \n"), line.size());
    const std::string name = line.substr(0, space);
    const size_t begin = line.find_first_not_of(" \n", space);
    const std::string rest = begin == std::string::npos ? "" : line.substr(begin);
    const auto file = [&] {
      if (rest.empty()) fail(ErrorKind::usage, "chat", "{}: expected the name of a file", name);
      return rest;
    };
    if (name == "/help" || name == "/?") {
      help();
    } else if (name == "/exit" || name == "/quit" || name == "/bye") {
      done_ = true;
    } else if (name == "/reset" || name == "/clear") {
      history_.clear();
    } else if (name == "/system") {
      history_.set_system(rest);
    } else if (name == "/retry") {
      retry();
    } else if (name == "/edit") {
      edit(rest);
    } else if (name == "/undo") {
      undo();
    } else if (name == "/save") {
      history_.save(file());
    } else if (name == "/load") {
      history_ = infer::Conversation::load(file());
    } else if (name == "/set") {
      set(rest);
    } else if (name == "/show") {
      show();
    } else if (name == "/tokens") {
      fmt::print("{} tokens\n", prompts_
                                    .encode(prompts_.render({.messages = history_.messages(),
                                                             .add_generation_prompt = false}))
                                    .size());
    } else {
      const std::vector<std::string> names(kCommands.begin(), kCommands.end());
      const std::string nearest = spec::nearest_name(name, names);
      fail(ErrorKind::usage, "chat", "there is no command {}{}; /help lists them",
           format::in_quotes(name),
           nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest));
    }
    flush_output();
  }

  static void help() {
    fmt::print(
        "/reset, /clear    start a new conversation; the system prompt stays\n"
        "/system TEXT      set the system prompt; empty = none\n"
        "/retry            regenerate the last answer with another seed\n"
        "/edit [TEXT]      edit the last question and answer it again\n"
        "/undo             delete the last question and its answer\n"
        "/save FILE        save the conversation as JSON lines; /load FILE continues one\n"
        "/set NAME VALUE   {}, seed,\n"
        "                  max-new-tokens, probabilities (on or off),\n"
        "                  samplers (their order: penalties,top_k,temperature)\n"
        "/show, /tokens    print the settings; the length of the conversation\n"
        "/exit, /bye       quit, as Ctrl-D\n"
        "Put text of several lines between \"\"\" and \"\"\". In pasted text, line ends are shown "
        "as\n"
        "↵ and kept.\n",
        names(",\n                  "));
  }

  /// Of all settings of sampling that are numbers.
  static std::string names(std::string_view between) {
    std::string out, line;
    for (const infer::DecodingField& field : infer::sampling_fields()) {
      const std::string name = field.flag().substr(2);
      const bool full = line.size() + name.size() > 60;
      if (full) out += line + std::string(between);
      line = (full || line.empty() ? "" : line + ", ") + name;
    }
    return out + line;
  }

  void set(const std::string& line) {
    const size_t space = line.find(' ');
    const std::string name = line.substr(0, space);
    const std::string value = space == std::string::npos ? "" : line.substr(space + 1);
    auto& g = args_.generate;
    const auto number = [&](auto& into) {
      std::remove_reference_t<decltype(into)> read{};
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), read);
      if (value.empty() || error != std::errc() || end != value.data() + value.size())
        fail(ErrorKind::usage, "chat", "/set {} {}: expected a number", name,
             format::in_quotes(value));
      into = read;
    };
    infer::SamplingOptions sampling = g.sampling;
    int64_t longest = g.max_new_tokens;
    if (const infer::DecodingField* field = infer::sampling_field(name)) {
      double read = 0;
      number(read);
      if (field->whole() && read != std::floor(read))
        fail(ErrorKind::usage, "chat", "/set {} {}: expected a whole number", name,
             format::in_quotes(value));
      field->set(sampling, read);
    } else if (name == "seed")
      sampling.seed = seed_named(value);
    else if (name == "max-new-tokens")
      number(longest);
    else if (name == "samplers")
      sampling.samplers = SamplingFlags::samplers_of(value);
    else if (name == "probabilities" && (value == "on" || value == "off"))
      args_.probabilities = value == "on";
    else
      fail(ErrorKind::usage, "chat",
           "/set {}; expected {}, seed, max-new-tokens and a number, probabilities and on or off, "
           "or samplers and their names",
           format::in_quotes(line), names(", "));
    sampling.check();
    if (longest < 1)
      fail(ErrorKind::usage, "chat", "max-new-tokens = {}; expected 1 or more", longest);
    g.sampling = sampling;
    g.max_new_tokens = longest;
  }

  static uint64_t seed_named(const std::string& value) {
    const std::optional<uint64_t> seed = infer::seed_of(value);
    if (!seed)
      fail(ErrorKind::usage, "chat", "/set seed {}: expected {}", format::in_quotes(value),
           infer::decoding_field("seed").expected);
    return *seed;
  }

  void show() const {
    const auto& g = args_.generate;
    const auto& s = g.sampling;
    const infer::SamplingOptions plain;
    std::string said;
    for (const infer::DecodingField& field : infer::sampling_fields()) {
      const double value = field.get(s);
      // the usual ones always, the others where they are set
      constexpr std::string_view kUsual[] = {"temperature", "top_k", "top_p", "min_p",
                                             "repetition_penalty"};
      if (std::find(std::begin(kUsual), std::end(kUsual), field.name) != std::end(kUsual) ||
          value != field.get(plain))
        said += fmt::format("{} {}, ", field.flag().substr(2), value);
    }
    if (s.samplers != plain.samplers)
      said += fmt::format("samplers {}, ", infer::to_string(s.samplers));
    fmt::print("{}seed {}, max-new-tokens {}, probabilities {}\n", said, s.seed, g.max_new_tokens,
               args_.probabilities ? "on" : "off");
    if (!history_.system().empty())
      fmt::print("system: {}\n", format::printable(history_.system(), 4000));
  }

  ChatArgs& args_;
  infer::LoadedModel loaded_;
  text::ChatPrompt prompts_;
  std::optional<infer::PrefixCache> cache_;
  std::optional<Passages> passages_;
  infer::Conversation history_;
  LineEditor* editor_ = nullptr;
  bool done_ = false;
};

}  // namespace chat_verb

std::function<int()> add_chat(CLI::App& app) {
  auto o = std::make_shared<chat_verb::ChatArgs>();
  auto& g = o->generate;
  g.max_new_tokens = 2048;
  g.sampling = infer::decoding_defaults({}, infer::TextKind::conversation).sampling;
  group(app, "Conversation");
  add_model(app, o->model,
            "model with a chat template: Hugging Face or tessera folder, GGUF file, or run");
  app.add_option("question,-p,--prompt", o->question,
                 "ask one question and exit; - = read it from stdin");
  app.add_option("--system,--system-prompt", o->system, "system prompt");
  app.add_option("--load", o->load, "continue a conversation saved by /save");
  app.add_option("--chat-template,--chat-template-file", o->template_file,
                 "Jinja file, or chatml, llama3, gemma, zephyr");
  app.add_option(
         "--template-date", o->date,
         "date that strftime_now() of the chat template gives: today, none (undefined), YYYY-MM-DD")
      ->capture_default_str();
  add_flag_of(app, infer::decoding_field("max_new_tokens"), g.max_new_tokens)
      ->capture_default_str()
      ->check(
          [](const std::string& text) { return text == "-1" ? std::string() : positive()(text); });
  app.add_flag("--probabilities", o->probabilities, "print the probability of each output token");
  app.add_flag("--no-history", o->no_history,
               "do not store typed lines ($XDG_STATE_HOME/tessera/chat_history)");
  group(app, "Sampling");
  o->sampling.add(app, g.sampling);
  group(app, "Constrained decoding");
  o->constraint.add(app);
  group(app, "Speculative decoding");
  o->speculation.add(app);
  group(app, "Context and KV cache");
  add_number(app, infer::decoding_field("context"), g.context);
  add_flag_of(app, infer::decoding_field("context_shift"), g.shift,
              "; between turns, leave out the oldest messages instead");
  app.add_option("--prefix-cache", o->cache_mib, "KV cache of earlier turns, MiB; 0 = off")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 30));
  o->kv.add(app);
  group(app, "Retrieval (RAG)");
  o->retrieve.add(app);
  group(app, "Precision and performance");
  o->products.add(app);
  o->device.add(app);
  add_threads(app, o->threads);
  group(app, "Model");
  add_adapters(app, o->adapters);
  o->loading.add(app);
  examples(
      app,
      {"tessera chat model.gguf", "tessera chat model.gguf -c 4096 --context-shift",
       "tessera chat model.gguf --system 'Answer in one sentence.' --temperature 0.8 --top-p 0.95",
       "tessera chat model.gguf 'What is the capital of France?'",
       "cat question.txt | tessera chat model.gguf -",
       "echo 'What is the capital of France?' | tessera chat model.gguf"});
  return [o] {
    if (o->threads > 0) set_thread_count(o->threads);
    o->generate.max_new_tokens = without_limit(o->generate.max_new_tokens);
    o->sampling.check();
    o->speculation.check();
    return chat_verb::Chat(*o).run();
  };
}

}  // namespace tessera::cli
