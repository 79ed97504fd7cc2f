#include <array>
#include <algorithm>
#include <filesystem>
#include <optional>

#include "tessera/infer/evaluation/expert_use.h"
#include "tessera/infer/engine/beam.h"

#include "tessera/base/text_input.h"
#include "tessera/base/threads.h"
#include "tessera/cli/answer_lines.h"
#include "tessera/cli/constraint_flags.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/features.h"
#include "tessera/cli/speculation_flags.h"
#include "tessera/cli/kv_flags.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/product_flags.h"
#include "tessera/cli/retrieve_flags.h"
#include "tessera/cli/sampling_flags.h"
#include "tessera/text/tokenizer/raw_prompt.h"

namespace tessera::cli {
namespace {

using infer::decoding_field;

struct GenerateArgs {
  LoadFlags loading;
  std::string model, session, prompt, prompt_file, early_stopping = "false";
  std::vector<std::string> adapters;
  std::vector<std::string> prompts, audio;
  std::vector<int64_t> input_ids;
  infer::GenerateOptions generate;
  infer::BeamOptions beams{.beams = 1};
  infer::MaskPredictOptions mask_predict;
  AnswerLines lines;
  SpeculationFlags speculation;
  KvFlags kv;
  ProductFlags products;
  DeviceFlag device;
  RetrieveFlags retrieve;
  SamplingFlags sampling;
  ConstraintFlags constraint;
  bool ignore_eos = false, json = false, parse_special = false, no_parse_special = false,
       no_special = false, quiet = false;
  bool warned = false;  // of a prompt
  int64_t expert_mib = 0, prefix_cache_mib = 0, snapshot_every = 256;
  int threads = 0;
};

/// The prompts, each after its row of `session`; without any, the rows continue alone.
std::vector<std::vector<int64_t>> prompt_ids(GenerateArgs& o,
                                             const infer::LoadedModel& loaded,
                                             const infer::Session& session) {
  const bool resumed = !session.rows.empty();
  if (!o.audio.empty()) return {};
  if (!o.input_ids.empty()) return {o.input_ids};
  if (o.prompts.empty()) {
    if (!resumed)
      fail(ErrorKind::usage, "generate",
           "nothing to continue: there is no {} yet; expected a prompt or --input-ids", o.session);
    return std::vector<std::vector<int64_t>>(session.rows.size());
  }
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "generate", "{} has no tokenizer; give --input-ids", o.model);
  std::vector<std::vector<int64_t>> prompts;
  for (const std::string& text : o.prompts) {
    // passages around a question are of others
    const text::RawPrompt prompt =
        text::encode_raw_prompt(*loaded.tokenizer, text,
                                {.add_special = !o.no_special && !resumed,
                                 .parse_special = !o.no_parse_special && !o.retrieve.on()});
    prompts.emplace_back(prompt.ids.begin(), prompt.ids.end());
    if (!prompt.warning.empty() && !std::exchange(o.warned, true))
      fmt::print(stderr, "warning: {}\n", prompt.warning);
  }
  return prompts;
}

/// The session file as it is, before anything is computed: one that could not be written in the
/// end is refused at once.
infer::Session open_session(GenerateArgs& o,
                            const infer::LoadedModel& loaded,
                            const std::string& fingerprint) {
  namespace fs = std::filesystem;
  const fs::path file = o.session;
  if (fs::exists(file)) {
    infer::Session session = infer::load_session(
        file, loaded.model, fingerprint, o.generate.speculation.max_pending(), o.generate.kv);
    if (!o.sampling.given("--seed")) o.generate.sampling.seed = session.seed;
    return session;
  }
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (!fs::is_directory(folder))
    fail(ErrorKind::usage, "session", "{}: there is no folder {} to write it in", o.session,
         folder.string());
  return {};
}

Json to_json(const infer::PrefixCache& cache) {
  const infer::PrefixCacheStats& stats = cache.stats();
  return {{"hits", stats.hits},
          {"cached_tokens", stats.cached_tokens},
          {"snapshots", stats.snapshots},
          {"snapshot_bytes", stats.snapshot_bytes},
          {"evictions", stats.evictions},
          {"held_bytes", cache.bytes()},
          {"budget_bytes", cache.options().budget_bytes}};
}

void print_stats(const infer::PrefixCache& cache) {
  const infer::PrefixCacheStats& stats = cache.stats();
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  fmt::print(stderr,
             "prefix cache: {} hits, {} cached tokens; {} state snapshots ({:.1f} MiB), "
             "{:.1f} of {:.0f} MiB used, {} evicted\n",
             stats.hits, stats.cached_tokens, stats.snapshots, mib(stats.snapshot_bytes),
             mib(cache.bytes()), mib(cache.options().budget_bytes), stats.evictions);
}

/// The prompts, each a question, after their passages.
std::vector<PromptWithSources> ask(GenerateArgs& o, const infer::LoadedModel& loaded) {
  std::vector<PromptWithSources> out;
  if (!o.retrieve.on()) return out;
  if (o.prompts.empty() || !loaded.tokenizer)
    fail(ErrorKind::usage, "generate",
         "--retrieve without a question; expected a prompt, and a "
         "model with a tokenizer");
  if (o.parse_special)
    fail(ErrorKind::usage, "generate",
         "--parse-special with --retrieve: passages could hold special tokens; leave one of them "
         "out");
  const Passages passages(o.retrieve, o.loading);
  for (std::string& prompt : o.prompts) {
    out.push_back(passages.ask(prompt, *loaded.tokenizer));
    prompt = out.back().prompt;
  }
  return out;
}

/// A run that was stopped half way through a prompt leaves the file as it was.
void keep(const GenerateArgs& o, const infer::Session& session, const std::string& fingerprint) {
  try {
    infer::save_session(o.session, session, fingerprint);
  } catch (const Error& error) {
    if (!cancel_token().requested() || error.kind() != ErrorKind::input) throw;
    fail(ErrorKind::cancelled, "generate", "stopped on request within a prompt; {} is as it was",
         o.session);
  }
}

/// No forced last token with a session, which may continue beyond this length.
void settle_forced(const GenerateArgs& o,
                   const infer::DecodingDefaults& defaults,
                   const infer::LoadedModel& loaded,
                   infer::GenerateOptions& options) {
  const bool encoder = loaded.model.spec().encoder != nullptr;
  if (o.sampling.given("--answer-prefix") && !encoder)
    fail(ErrorKind::usage, "generate",
         "--answer-prefix is for models that answer a source; write it into the prompt");
  infer::take_forced_tokens(defaults, encoder, !o.ignore_eos && options.session == nullptr,
                            options);
}

/// Tokens a second; none where no time was measured, as where nothing was computed.
std::optional<double> speed(int64_t tokens, double seconds) {
  if (tokens == 0 || seconds <= 0) return std::nullopt;
  return static_cast<double>(tokens) / seconds;
}

struct Speeds {
  std::optional<double> prefill, decode;
};

/// How likely tokens were, as numbers that JSON has.
Json to_json(const infer::PositionLogprobs& logprobs, const text::Tokenizer* tokenizer) {
  const auto one = [&](const infer::TokenLogprob& chance) {
    Json out{{"id", chance.id}, {"logprob", std::max(chance.log_p, -9999.0)}};
    const auto id = static_cast<int32_t>(chance.id);
    if (tokenizer != nullptr) out["token"] = tokenizer->decode(std::span(&id, 1), false);
    return out;
  };
  Json out = one(logprobs.chosen);
  out["top"] = Json::array();
  for (const infer::TokenLogprob& chance : logprobs.top) out["top"].push_back(one(chance));
  return out;
}

void report_json(const GenerateArgs& o,
                 const infer::Generations& result,
                 const Speeds& speeds,
                 const infer::PrefixCache* cache,
                 const infer::ExpertUse& experts,
                 const std::vector<PromptWithSources>& asked,
                 const text::Tokenizer* tokenizer) {
  const auto number = [](std::optional<double> value) { return value ? Json(*value) : Json(); };
  Json rows = Json::array();
  for (const infer::Generation& row : result.rows) {
    rows.push_back({{"text", row.text},
                    {"token_ids", row.token_ids},
                    {"prompt_tokens", row.prompt_tokens},
                    {"cached_tokens", row.cached_tokens},
                    {"finish_reason", row.finish_reason},
                    {"context_shifts", row.shifts},
                    {"prefill_tokens_per_s", number(speeds.prefill)},
                    {"decode_tokens_per_s", number(speeds.decode)}});
    if (row.limit != infer::Limit::none)
      rows.back()["limit"] = infer::limit_name(row.limit, "max_new_tokens");
    if (o.constraint.on()) rows.back()["cut"] = row.cut.empty() ? Json() : Json(row.cut);
    if (o.generate.logprobs) {
      rows.back()["logprobs"] = Json::array();
      for (const infer::PositionLogprobs& logprobs : row.logprobs)
        rows.back()["logprobs"].push_back(to_json(logprobs, tokenizer));
    }
    if (o.generate.speculation.on()) {
      rows.back()["guessed_tokens"] = rows.back()["draft_tokens"] = result.drafted_tokens;
      rows.back()["accepted_tokens"] = result.accepted_tokens;
      if (result.plain_tokens_per_s > 0)
        rows.back()["plain_tokens_per_s"] = rows.back()["baseline_tokens_per_s"] =
            result.plain_tokens_per_s;
    }
    if (!asked.empty())
      rows.back()["sources"] =
          asked.at((rows.size() - 1) / static_cast<size_t>(o.generate.choices)).sources(row.text);
    if (cache != nullptr) rows.back()["prefix_cache"] = to_json(*cache);
    // of all rows together
    if (result.replayed_steps > 0) rows.back()["replayed_steps"] = result.replayed_steps;
    if (!experts.empty()) rows.back()["experts"] = experts.to_json();
  }
  print_json(rows.size() == 1 ? rows[0] : rows);
}

/// Why the texts ended, those that ended alike together, and how to continue after a full context.
void print_endings(const infer::Generations& result) {
  std::vector<std::pair<std::string, int64_t>> endings;
  bool full = false;
  for (const infer::Generation& row : result.rows) {
    const std::string ending = infer::ending_of(row);
    const auto known = std::find_if(endings.begin(), endings.end(),
                                    [&](const auto& other) { return other.first == ending; });
    if (known != endings.end())
      ++known->second;
    else
      endings.emplace_back(ending, 1);
    full = full || row.limit == infer::Limit::context;
  }
  std::vector<std::string> said;
  for (const auto& [ending, count] : endings)
    said.push_back(result.rows.size() == 1 ? ending : fmt::format("{} ({})", ending, count));
  fmt::print(stderr, "ended by: {}{}\n", fmt::join(said, ", "),
             full ? " (--context-shift continues)" : "");
}

void report_text(const GenerateArgs& o,
                 const infer::Generations& result,
                 const Speeds& speeds,
                 const infer::PrefixCache* cache) {
  flush_output();
  const auto of = [](int64_t tokens, std::optional<double> per_s) {
    return fmt::format("{} token{}{}", tokens, tokens == 1 ? "" : "s",
                       per_s ? fmt::format(", {:.1f} tokens/s", *per_s) : "");
  };
  // the first token of a text comes with its prompt, so that the speed is that of the others
  int64_t made = 0;
  for (const infer::Generation& row : result.rows) made += std::ssize(row.token_ids);
  fmt::print(stderr, "prompt {}; generated {}\n", of(result.prefill_tokens, speeds.prefill),
             of(made, speeds.decode));
  print_endings(result);
  int64_t shifts = 0;
  for (const infer::Generation& row : result.rows) shifts += row.shifts;
  if (shifts > 0) fmt::print(stderr, "context shifted {} time{}\n", shifts, shifts == 1 ? "" : "s");
  if (o.generate.speculation.on()) {
    fmt::print(stderr, "speculative decoding: {} of {} draft tokens accepted ({:.0f} %)",
               result.accepted_tokens, result.drafted_tokens,
               100.0 * static_cast<double>(result.accepted_tokens) /
                   static_cast<double>(std::max<int64_t>(1, result.drafted_tokens)));
    if (result.plain_tokens_per_s > 0 && speeds.decode)
      fmt::print(stderr, "; speed-up {:.2f}x over {:.1f} tokens/s without drafting",
                 *speeds.decode / result.plain_tokens_per_s, result.plain_tokens_per_s);
    fmt::print(stderr, "\n");
  }
  if (cache != nullptr) print_stats(*cache);
}

/// Flags that say how tokens are drawn, which a search does not do.
std::vector<std::string> drawing_flags() {
  std::vector<std::string> flags = {"--seed", "--dry-sequence-breaker", "--samplers"};
  for (const infer::DecodingField& field : infer::sampling_fields())
    if (field.filters || field.sampler == infer::Sampler::temperature)
      flags.push_back(field.flag());
  return flags;
}

/// Options that would have no effect with the others are errors.
void check_options(const GenerateArgs& o, const CLI::App& app) {
  const auto given = [&](const char* name) { return app.count(name) > 0; };
  if (o.beams.beams > 1) {
    if (o.speculation.on())
      fail(ErrorKind::usage, "generate",
           "{} with --beams {}: speculative decoding and beam search exclude each other; leave "
           "one of them out",
           o.speculation.given(), o.beams.beams);
    for (const std::string& choice : drawing_flags())
      if (given(choice.c_str()))
        fail(ErrorKind::usage, "generate",
             "{} with --beams {}: beam search does not sample; leave one of them out", choice,
             o.beams.beams);
  } else if (given("--length-penalty")) {
    fail(ErrorKind::usage, "generate",
         "--length-penalty without beam search; expected --beams of 2 or more");
  } else if (given("--early-stopping")) {
    fail(ErrorKind::usage, "generate",
         "--early-stopping without beam search; expected --beams of 2 or more");
  }
  if (o.beams.beams > 1)
    for (const char* choice : {"--choices", "--logprobs", "--grammar", "--json-schema", "--regex"})
      if (given(choice))
        fail(ErrorKind::usage, "generate",
             "{} with --beams {}: it is not available with beam search; leave one of them out",
             choice, o.beams.beams);
  if (given("--choices") && o.lines.given())
    fail(ErrorKind::usage, "generate",
         "--choices with --prompts-from, which has one completion per line; leave one of them out");
  if (given("--logprobs") && !o.json)
    fail(ErrorKind::usage, "generate",
         "--logprobs without --json, which prints them; expected both");
}

/// Every line of a file with its answer.
int answer_lines(GenerateArgs& o, const infer::LoadedModel& loaded) {
  const infer::GenerateOptions all = o.generate;
  const text::Tokenizer* tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  o.lines.run([&](const std::vector<std::string>& prompts, int64_t first) {
    o.prompts = prompts;
    const auto ids = prompt_ids(o, loaded, {});
    infer::GenerateOptions some = all;
    some.sampling.seed += static_cast<uint64_t>(first);  // no batch draws what another drew
    const infer::Generations result =
        o.beams.beams > 1 ? infer::beam_search(loaded.model, tokenizer, ids, some, o.beams)
                          : infer::generate(loaded.model, tokenizer, ids, some);
    if (cancel_token().requested()) fail(ErrorKind::cancelled, "generate", "stopped on request");
    std::vector<std::string> answers;
    for (const infer::Generation& row : result.rows) {
      if (row.error) std::rethrow_exception(row.error);
      ConstraintFlags::check(row);
      answers.push_back(row.text);
    }
    return answers;
  });
  return kExitOk;
}

/// The first flag given that no search goes with; empty where there is none.
std::string no_search_with(const GenerateArgs& o) {
  std::vector<std::string> flags = drawing_flags();
  for (const char* flag : {"--choices", "--logprobs", "--grammar", "--json-schema", "--regex",
                           "--session", "--context-shift", "--iterations", "--length-candidates",
                           "--draft", "--lookup", "--predictors", "--exit-layer"})
    flags.emplace_back(flag);
  for (const std::string& flag : flags)
    if (o.sampling.given(flag)) return flag;
  return "";
}

/// The model's generation config, where no flag overrides it.
infer::DecodingDefaults settle_decoding(GenerateArgs& o, const infer::LoadedModel& loaded) {
  const bool flags = o.beams.beams > 1 || o.sampling.given("--beams");
  auto defaults = o.sampling.fill(loaded.generation, infer::TextKind::continuation, o.generate);
  if (defaults.beams && !flags) {
    const std::string other = no_search_with(o);
    if (other.empty())
      o.beams = *defaults.beams;
    else
      fmt::print(stderr, "tessera: {}: without effect: num_beams = {} (with {})\n", defaults.source,
                 defaults.beams->beams, other);
  }
  if (o.sampling.given("--min-new-tokens") && o.generate.min_new_tokens > o.generate.max_new_tokens)
    fail(ErrorKind::usage, "generate",
         "--min-new-tokens {} is more than --max-new-tokens {}; expected at most as many",
         o.generate.min_new_tokens, o.generate.max_new_tokens);
  if (o.beams.beams > 1 || o.generate.sampling.temperature > 0) return defaults;
  if (const std::string choice = o.sampling.filter_given(); !choice.empty())
    fail(ErrorKind::usage, "generate",
         "{} at temperature 0 (greedy decoding) has no effect; expected --temperature above 0",
         choice);
  if (o.generate.choices > 1)
    fail(ErrorKind::usage, "generate",
         "--choices {} at temperature 0 (greedy decoding) gives equal completions; expected "
         "--temperature above 0",
         o.generate.choices);
  return defaults;
}

int generate(GenerateArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  auto& g = o.generate;
  o.sampling.check();
  infer::LoadedModel loaded = o.device.loaded([&] {
    return infer::load_model(o.model, o.kv.loading(o.loading), o.adapters, o.products.products());
  });
  say_differences(loaded.source);
  const infer::DecodingDefaults defaults = settle_decoding(o, loaded);
  o.products.check(loaded.model);
  o.kv.check(loaded.model, o.products);
  g.kv = o.kv.options();
  g.keep_first = o.kv.keep_first;
  const text::Tokenizer* tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  g.speculation = o.speculation.load(o.loading.options(), o.products.arithmetic(), o.device);
  infer::Session session;
  std::string fingerprint;
  if (!o.session.empty()) {
    fingerprint = infer::fingerprint(loaded.model, tokenizer);
    session = open_session(o, loaded, fingerprint);
    g.session = &session;
  }
  std::optional<infer::PrefixCache> cache;
  if (o.prefix_cache_mib > 0)
    g.prefix_cache = &cache.emplace(
        loaded.model, infer::PrefixCacheOptions{.budget_bytes = o.prefix_cache_mib << 20,
                                                .snapshot_every = o.snapshot_every});
  const std::vector<PromptWithSources> asked = ask(o, loaded);
  const auto prompts =
      o.lines.given() ? std::vector<std::vector<int64_t>>() : prompt_ids(o, loaded, session);
  for (const std::string& file : o.audio)
    g.features.push_back(spectrogram(file, loaded.model.spec(), "generate"));
  if (!o.ignore_eos) g.stop_ids = o.sampling.ends(loaded);
  g.constraint = o.constraint.make(o.model, tokenizer);
  settle_forced(o, defaults, loaded, g);
  // once, and not before what is refused is refused
  bool printed = loaded.model.spec().mask.has_value();
  g.on_start = [&] {
    if (!std::exchange(printed, true)) SamplingFlags::print(g, o.beams, defaults);
  };
  g.cancel = &cancel_token();
  g.expert_memory = o.expert_mib << 20;
  if (o.lines.given()) return answer_lines(o, loaded);
  infer::ExpertUse experts;
  if (o.json)
    g.statistics = [&experts](const std::string& name, const at::Tensor& value) {
      experts.add(name, value);
    };

  // an answer is printed alone, a continuation after its prompt
  const bool quiet = o.quiet || o.prompts.empty() || !asked.empty() || o.constraint.on() ||
                     loaded.model.spec().encoder != nullptr;
  const bool stream =
      !o.json && g.choices == 1 && prompts.size() + o.audio.size() == 1 && tokenizer != nullptr;
  if (stream) {
    if (!quiet)
      g.on_start = [&o, print = g.on_start] {
        print();
        fmt::print("{}", o.prompts.front());
      };
    g.on_text = [](size_t, std::string_view text) {
      fmt::print("{}", text);
      flush_output();
    };
  }
  const infer::Generations result =
      o.beams.beams > 1 ? infer::beam_search(loaded.model, tokenizer, prompts, g, o.beams)
                        : infer::generate(loaded.model, tokenizer, prompts, g);
  const Speeds speeds{speed(result.prefill_tokens, result.prefill_seconds),
                      speed(result.decode_tokens, result.decode_seconds)};
  if (!result.recording_failure.empty())
    fmt::print(stderr, "tessera: {}\n", infer::recording_note(result.recording_failure));
  if (o.json) {
    report_json(o, result, speeds, g.prefix_cache, experts, asked, tokenizer);
  } else {
    if (stream) fmt::print("\n");
    for (size_t r = 0; r < result.rows.size() && !stream; ++r) {
      const infer::Generation& row = result.rows[r];
      if (tokenizer == nullptr)
        fmt::print("{}\n", fmt::join(row.token_ids, " "));
      else
        fmt::print("{}{}{}\n", r > 0 ? "---\n" : "",
                   quiet ? "" : o.prompts[r / static_cast<size_t>(g.choices)], row.text);
    }
    for (size_t r = 0; r < asked.size(); ++r)
      asked[r].print_sources(result.rows.at(r * static_cast<size_t>(g.choices)).text);
    report_text(o, result, speeds, g.prefix_cache);
  }
  if (g.session != nullptr) keep(o, session, fingerprint);
  // after the texts of the other rows
  for (const infer::Generation& row : result.rows)
    if (row.error) std::rethrow_exception(row.error);
  if (cancel_token().requested()) fail(ErrorKind::cancelled, "generate", "stopped on request");
  for (const infer::Generation& row : result.rows) ConstraintFlags::check(row);
  return kExitOk;
}

/// The prompt of the command line: its text, a file, or standard input.
std::string prompt_of(const std::string& text) {
  if (text != "-") return text;
  std::string all = read_text_input("-", &cancel_token());
  if (all.ends_with('\n')) all.pop_back();  // of the line, not of the prompt
  return all;
}

/// What is generated from; the flag of each is checked against the others.
void add_input(CLI::App& app, GenerateArgs& o) {
  auto* positional = app.add_option("prompt", o.prompt, "prompt to complete; - = standard input");
  auto* prompt = add_texts(app, "--prompt,-p", o.prompts,
                           "prompt to complete; - = standard input; repeat for a batch");
  auto* file = app.add_option("--prompt-file,-f,--file", o.prompt_file,
                              "file with the prompt (its last line end is left out)");
  auto* ids = add_ids(app, "--input-ids", o.input_ids, "prompt as token ids: 1,2,3");
  const std::array inputs = {positional, prompt, file, ids};
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t j = 0; j < i; ++j) inputs[i]->excludes(inputs[j]);
  auto* parse = app.add_flag("--parse-special,--special", o.parse_special,
                             "parse special tokens in the prompt; default, except with --retrieve");
  app.add_flag("--no-parse-special", o.no_parse_special,
               "read special tokens in the prompt as text")
      ->excludes(parse);
  app.add_flag("--no-special", o.no_special, "do not add special tokens (BOS)");
}

void add_length(CLI::App& app, infer::GenerateOptions& g, bool& ignore_eos) {
  group(app, "Length and stopping");
  add_number(app, decoding_field("max_new_tokens"), g.max_new_tokens);
  add_number(app, decoding_field("min_new_tokens"), g.min_new_tokens);
  add_flag_of(app, decoding_field("stop"), g.stop_strings, "; repeatable");
  add_flag_of(app, decoding_field("ignore_eos"), ignore_eos);
}

}  // namespace

std::function<int()> add_generate(CLI::App& app) {
  auto o = std::make_shared<GenerateArgs>();
  auto& g = o->generate;
  group(app, "Input");
  add_model(app, o->model);
  add_input(app, *o);
  group(app, "Output");
  app.add_flag("--json", o->json,
               "text, token_ids, prompt_tokens, cached_tokens, finish_reason and speeds as JSON");
  app.add_flag("--no-echo,--no-display-prompt", o->quiet, "print the completion only");
  add_number(app, decoding_field("choices"), g.choices, "; the prompt is computed once");
  add_flag_of(app, decoding_field("logprobs"), g.logprobs,
              ", before temperature, penalties and filters; with --json")
      ->check(within(decoding_field("logprobs")));
  add_length(app, g, o->ignore_eos);
  group(app, "Sampling");
  o->sampling.add(app, g.sampling);
  group(app, "Constrained decoding");
  o->constraint.add(app);
  group(app, "Beam search");
  add_number(app, decoding_field("beams"), o->beams.beams, "; up to 1024");
  add_number(app, decoding_field("length_penalty"), o->beams.length_penalty);
  add_flag_of(app, decoding_field("early_stopping"), o->early_stopping)
      ->capture_default_str()
      ->check(CLI::IsMember({"true", "false", "never"}));
  group(app, "Speculative decoding");
  o->speculation.add(app);
  group(app, "Context and KV cache");
  add_number(app, decoding_field("context"), g.context);
  add_flag_of(app, decoding_field("context_shift"), g.shift);
  o->kv.add(app);
  group(app, "Caching and sessions");
  app.add_option("--session,--prompt-cache", o->session,
                 "save and resume: file with tokens, KV cache and seed; a further prompt "
                 "continues it");
  auto* prefix_cache =
      app.add_option("--prefix-cache", o->prefix_cache_mib,
                     "prefix cache, MiB: prompts with a common prefix compute it once")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--snapshot-every", o->snapshot_every,
                 "prefix cache of recurrent and windowed models: save the state every N prompt "
                 "tokens; 0 = only at the end")
      ->capture_default_str()
      ->needs(prefix_cache)
      ->check(not_negative());
  group(app, "Retrieval (RAG)");
  o->retrieve.add(app);
  group(app, "Batch files");
  o->lines.add(app);
  group(app, "Encoder-decoder and speech");
  auto* audio = app.add_option("--audio", o->audio,
                               "16 kHz WAV file to transcribe (cut or padded to 30 s); repeat for "
                               "a batch")
                    ->allow_extra_args(false);
  for (const char* input : {"prompt", "--prompt", "--prompt-file", "--input-ids"})
    audio->excludes(app.get_option(input));
  add_ids(app, "--answer-prefix", g.forced_begin,
          "encoder-decoder: token ids the decoder starts with (language, task); without it the "
          "generation config's");
  add_number(app, decoding_field("iterations"), o->mask_predict.iterations);
  add_number(app, decoding_field("length_candidates"), o->mask_predict.lengths);
  group(app, "Precision and performance");
  o->products.add(app);
  o->device.add(app);
  add_threads(app, o->threads);
  o->device.excludes(
      app.add_option("--expert-memory", o->expert_mib,
                     "mixture of experts: maximum MiB of routed experts in RAM; the least used are "
                     "read again; 0 = no limit")
          ->capture_default_str()
          ->check(CLI::Range(int64_t{0}, int64_t{1} << 40)));
  group(app, "Model");
  add_adapters(app, o->adapters);
  o->loading.add(app);
  examples(
      app,
      {"tessera generate model.gguf 'Once upon a time' -n 100",
       "echo 'Once upon a time' | tessera generate model.gguf -p - --temp 0.8 --top-p 0.95",
       "tessera generate folder --prompt 'A' --prompt 'B' --temperature 0.8 --top-p 0.95 "
       "--seed 7 --json",
       "tessera generate model.gguf --prompt 'Once upon a time' --temperature 1 --min-p 0.05 "
       "--dry-multiplier 0.8 --xtc-probability 0.5",
       "tessera generate model.gguf --prompt 'Once upon a time' --temperature 1 --mirostat 2",
       "tessera generate model.gguf --prompt 'Once upon a time' --lookup 3",
       "tessera generate run --prompt 'Once upon a time' --predictors --temperature 0",
       "tessera generate run --prompt 'Once upon a time' --predictors --draft-tokens 3 --branches "
       "3",
       "tessera generate model.gguf --prompt 'Once upon a time' --temperature 1 --choices 3",
       "tessera generate model.gguf --prompt 'Once upon a time' --json --logprobs 5",
       "tessera generate model.gguf --prompt 'A person as JSON: ' --json-schema '{\"type\": "
       "\"object\"}'",
       "tessera generate model.gguf --prompt 'Is the sky blue? ' --regex 'yes|no'",
       "tessera generate model.gguf --prompt 'Once upon a time' --session tale",
       "tessera generate whisper --audio speech.wav --answer-prefix 50259,50359,50363",
       "tessera generate model.gguf --session tale",
       "tessera generate model.gguf --prompt 'Once upon a time' --context 512 --context-shift "
       "-n 5000",
       "tessera generate teacher --prompts-from questions.jsonl --answer-key answer > taught.jsonl",
       "tessera generate student --prompt 'a source' --iterations 4 --length-candidates 3",
       "tessera generate model.gguf --prompt 'A long text. Q1' --prompt 'A long text. Q2' "
       "--prefix-cache 256"});
  return [o, &app] {
    const auto given = [&](const char* option) { return app.count(option) > 0; };
    if (o->lines.given())
      for (const char* other :
           {"prompt", "--prompt", "--prompt-file", "--input-ids", "--audio", "--session", "--json"})
        if (given(other))
          fail(ErrorKind::usage, "generate",
               "{} with --prompts-from, which reads its prompts from a file; leave one of them out",
               other);
    if (given("prompt")) o->prompts = {o->prompt};
    for (std::string& prompt : o->prompts) prompt = prompt_of(prompt);
    if (given("--prompt-file")) {
      o->prompts = {read_text_input(o->prompt_file, &cancel_token())};
      if (o->prompts[0].ends_with('\n')) o->prompts[0].pop_back();
    }
    if (o->prompts.empty() && o->input_ids.empty() && o->audio.empty() && !given("--session") &&
        !o->lines.given())
      fail(ErrorKind::usage, "generate",
           "nothing to complete; expected a prompt (`tessera generate MODEL 'Once upon a time'`), "
           "--prompt-file, --input-ids, --audio or --prompts-from");
    o->generate.max_new_tokens = without_limit(o->generate.max_new_tokens);
    check_options(*o, app);
    o->beams.early_stopping = o->early_stopping == "true"    ? convert::EarlyStopping::always
                              : o->early_stopping == "never" ? convert::EarlyStopping::never
                                                             : convert::EarlyStopping::heuristic;
    o->speculation.check();
    if (given("--iterations") || given("--length-candidates"))
      o->generate.mask_predict = o->mask_predict;
    return generate(*o);
  };
}

}  // namespace tessera::cli
