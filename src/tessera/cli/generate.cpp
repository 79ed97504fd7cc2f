#include <filesystem>

#include "tessera/infer/expert_use.h"
#include "tessera/infer/beam.h"

#include "tessera/base/threads.h"
#include "tessera/cli/answer_lines.h"
#include "tessera/cli/constraint_flags.h"
#include "tessera/cli/features.h"
#include "tessera/cli/guess_flags.h"
#include "tessera/cli/kv_flags.h"
#include "tessera/cli/model_source.h"
#include "tessera/cli/product_flags.h"
#include "tessera/cli/retrieve_flags.h"
#include "tessera/cli/sampling_flags.h"
#include "tessera/infer/load_model.h"

namespace tessera::cli {
namespace {

struct GenerateArgs {
  std::string model, families, session;
  std::vector<std::string> adapters;
  std::vector<std::string> prompts, audio;
  std::vector<int64_t> input_ids;
  infer::GenerateOptions generate;
  infer::BeamOptions beams{.beams = 1};
  infer::MaskPredictOptions mask_predict;
  AnswerLines lines;
  GuessFlags guesses;
  KvFlags kv;
  ProductFlags products;
  RetrieveFlags retrieve;
  SamplingFlags sampling;
  ConstraintFlags constraint;
  bool ignore_eos = false, json = false, parse_special = false, no_special = false, quiet = false;
  bool seed_given = false;
  int64_t expert_mib = 0, prefix_cache_mib = 0, snapshot_every = 256;
  int threads = 0;
};

/// The prompts, each behind its row of `session`; without any, the rows go on by themselves.
std::vector<std::vector<int64_t>> prompt_ids(const GenerateArgs& o,
                                             const infer::LoadedModel& loaded,
                                             const infer::Session& session) {
  const bool resumed = !session.rows.empty();
  if (!o.audio.empty()) return {};
  if (!o.input_ids.empty()) return {o.input_ids};
  if (o.prompts.empty()) {
    if (!resumed)
      fail(ErrorKind::usage, "generate",
           "nothing to continue: there is no {} yet; expected --prompt or --input-ids", o.session);
    return std::vector<std::vector<int64_t>>(session.rows.size());
  }
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "generate", "{} has no tokenizer; give --input-ids", o.model);
  std::vector<std::vector<int64_t>> prompts;
  for (const std::string& text : o.prompts) {
    const auto ids = loaded.tokenizer->encode(
        text, {.add_special = !o.no_special && !resumed, .parse_special = o.parse_special});
    prompts.emplace_back(ids.begin(), ids.end());
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
    if (!o.seed_given) o.generate.sampling.seed = session.seed;
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
             "prefix cache: {} hits, {} tokens not computed; {} snapshots of {:.1f} MiB in all, "
             "{:.1f} of {:.0f} MiB held, {} evicted\n",
             stats.hits, stats.cached_tokens, stats.snapshots, mib(stats.snapshot_bytes),
             mib(cache.bytes()), mib(cache.options().budget_bytes), stats.evictions);
}

/// The prompts, each a question, behind their passages.
std::vector<Asked> ask(GenerateArgs& o, const infer::LoadedModel& loaded) {
  std::vector<Asked> out;
  if (!o.retrieve.on()) return out;
  if (o.prompts.empty() || !loaded.tokenizer)
    fail(ErrorKind::usage, "generate",
         "--retrieve without a question; expected --prompt, and a "
         "model with a tokenizer");
  if (o.parse_special)
    fail(ErrorKind::usage, "generate",
         "--parse-special with --retrieve: passages could hold special tokens; leave one of them "
         "out");
  const Passages passages(o.retrieve);
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

/// Beside an encoder: what its answers begin with, and end with at the longest length.
void force_ids(infer::GenerateOptions& options, const infer::LoadedModel& loaded, bool to_the_end) {
  if (!loaded.model.spec().encoder) {
    if (!options.forced_begin.empty())
      fail(ErrorKind::usage, "generate",
           "--answer-prefix is for models that answer a source; write it into the prompt");
    return;
  }
  if (options.forced_begin.empty() && loaded.generation.forced_begin)
    options.forced_begin = {*loaded.generation.forced_begin};
  // a session may go on beyond this length
  if (!to_the_end || options.session != nullptr || !loaded.generation.forced_end) return;
  options.forced_end = loaded.generation.forced_end;
  options.stop_ids.push_back(*options.forced_end);
}

struct Speeds {
  double prefill, decode;  // tokens per second
};

/// How likely tokens were, as numbers that JSON has.
Json to_json(const infer::Chances& chances, const text::Tokenizer* tokenizer) {
  const auto one = [&](const infer::Chance& chance) {
    Json out{{"id", chance.id}, {"logprob", std::max(chance.log_p, -9999.0)}};
    const auto id = static_cast<int32_t>(chance.id);
    if (tokenizer != nullptr) out["token"] = tokenizer->decode(std::span(&id, 1), false);
    return out;
  };
  Json out = one(chances.chosen);
  out["top"] = Json::array();
  for (const infer::Chance& chance : chances.top) out["top"].push_back(one(chance));
  return out;
}

void report_json(const GenerateArgs& o,
                 const infer::Generations& result,
                 const Speeds& speeds,
                 const infer::PrefixCache* cache,
                 const infer::ExpertUse& experts,
                 const std::vector<Asked>& asked,
                 const text::Tokenizer* tokenizer) {
  Json rows = Json::array();
  for (const infer::Generation& row : result.rows) {
    rows.push_back({{"text", row.text},
                    {"token_ids", row.token_ids},
                    {"prompt_tokens", row.prompt_tokens},
                    {"cached_tokens", row.cached_tokens},
                    {"finish_reason", row.finish_reason},
                    {"context_shifts", row.shifts},
                    {"prefill_tokens_per_s", speeds.prefill},
                    {"decode_tokens_per_s", speeds.decode}});
    if (o.constraint.on()) rows.back()["cut"] = row.cut.empty() ? Json() : Json(row.cut);
    if (o.generate.chances) {
      rows.back()["logprobs"] = Json::array();
      for (const infer::Chances& chances : row.chances)
        rows.back()["logprobs"].push_back(to_json(chances, tokenizer));
    }
    if (o.generate.speculation.on()) {
      rows.back()["guessed_tokens"] = result.guessed_tokens;
      rows.back()["accepted_tokens"] = result.accepted_tokens;
      if (result.plain_tokens_per_s > 0)
        rows.back()["plain_tokens_per_s"] = result.plain_tokens_per_s;
    }
    if (!asked.empty())
      rows.back()["sources"] =
          asked.at((rows.size() - 1) / static_cast<size_t>(o.generate.choices)).sources(row.text);
    if (cache != nullptr) rows.back()["prefix_cache"] = to_json(*cache);
    // of all rows together
    if (!experts.empty()) rows.back()["experts"] = experts.to_json();
  }
  print_json(rows.size() == 1 ? rows[0] : rows);
}

void report_text(const GenerateArgs& o,
                 const infer::Generations& result,
                 const Speeds& speeds,
                 const infer::PrefixCache* cache) {
  flush_output();
  fmt::print(stderr, "prefill {} tokens, {:.1f} tokens/s; decode {} tokens, {:.1f} tokens/s\n",
             result.prefill_tokens, speeds.prefill, result.decode_tokens, speeds.decode);
  int64_t shifts = 0;
  for (const infer::Generation& row : result.rows) shifts += row.shifts;
  if (shifts > 0) fmt::print(stderr, "the context was full {} times, and was halved\n", shifts);
  if (o.generate.speculation.on()) {
    fmt::print(stderr, "{} of {} guesses were right", result.accepted_tokens,
               result.guessed_tokens);
    if (result.plain_tokens_per_s > 0)
      fmt::print(stderr,
                 "; {:.2f} times as fast as without, by {:.1f} tokens/s measured in between",
                 speeds.decode / result.plain_tokens_per_s, result.plain_tokens_per_s);
    fmt::print(stderr, "\n");
  }
  if (cache != nullptr) print_stats(*cache);
}

/// Options that would do nothing beside the others are a mistake of whoever gave them.
void check_options(const GenerateArgs& o, const CLI::App& app) {
  const auto given = [&](const char* name) { return app.count(name) > 0; };
  if (o.beams.beams > 1) {
    if (o.guesses.on())
      fail(ErrorKind::usage, "generate",
           "{} with --beams {}: guesses are checked against one text, and a search keeps many; "
           "leave one of them out",
           o.guesses.given(), o.beams.beams);
    std::vector<std::string> choices = {"--seed", "--logit-bias", "--dry-sequence-breaker"};
    for (const infer::SamplingField& field : infer::sampling_fields())
      choices.push_back(field.flag());
    for (const std::string& choice : choices)
      if (given(choice.c_str()))
        fail(ErrorKind::usage, "generate",
             "{} with --beams {}: a search ranks by the model's own probabilities and chooses "
             "nothing by chance; leave one of them out",
             choice, o.beams.beams);
  } else if (given("--length-penalty")) {
    fail(ErrorKind::usage, "generate",
         "--length-penalty without a search; expected --beams of 2 or more");
  }
  if (o.beams.beams > 1)
    for (const char* choice :
         {"--choices", "--logprobs", "--min-new-tokens", "--grammar", "--json-schema", "--regex"})
      if (given(choice))
        fail(ErrorKind::usage, "generate",
             "{} with --beams {}: it goes with samples, not with a search; leave one of them out",
             choice, o.beams.beams);
  if (given("--choices") && o.lines.given())
    fail(ErrorKind::usage, "generate",
         "--choices with --prompts-from, where every line has one answer; leave one of them out");
  if (given("--logprobs") && !o.json)
    fail(ErrorKind::usage, "generate",
         "--logprobs without --json, where they stand; expected both");
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

/// How the model's makers choose tokens, where no flag says otherwise.
void settle_sampling(GenerateArgs& o, const infer::LoadedModel& loaded) {
  if (o.beams.beams > 1) return;
  o.sampling.fill(loaded.generation);
  if (o.generate.sampling.temperature > 0) return;
  if (const std::string choice = o.sampling.filter_given(); !choice.empty())
    fail(ErrorKind::usage, "generate",
         "{} at temperature 0, which takes the most likely token and chooses nothing by "
         "chance; expected --temperature above 0",
         choice);
  if (o.generate.choices > 1)
    fail(ErrorKind::usage, "generate",
         "--choices {} at temperature 0, where all texts are the same; expected --temperature "
         "above 0",
         o.generate.choices);
}

int generate(GenerateArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  auto& g = o.generate;
  o.sampling.check();
  const infer::LoadedModel loaded =
      infer::load_model(o.model, o.kv.loading(o.families), o.adapters, o.products.products());
  say_differences(loaded.source);
  settle_sampling(o, loaded);
  o.products.check(loaded.model);
  o.kv.check(loaded.model, o.products);
  g.kv = o.kv.options();
  g.keep_first = o.kv.keep_first;
  const text::Tokenizer* tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  g.speculation = o.guesses.load(o.families, o.products.arithmetic());
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
  const std::vector<Asked> asked = ask(o, loaded);
  const auto prompts =
      o.lines.given() ? std::vector<std::vector<int64_t>>() : prompt_ids(o, loaded, session);
  for (const std::string& file : o.audio)
    g.features.push_back(spectrogram(file, loaded.model.spec(), "generate"));
  if (!o.ignore_eos) g.stop_ids = o.sampling.ends(loaded);
  g.constraint = o.constraint.make(o.model, tokenizer);
  force_ids(g, loaded, !o.ignore_eos);
  g.cancel = &cancel_token();
  g.expert_memory = o.expert_mib << 20;
  if (o.lines.given()) return answer_lines(o, loaded);
  infer::ExpertUse experts;
  if (o.json)
    g.statistics = [&experts](const std::string& name, const at::Tensor& value) {
      experts.add(name, value);
    };

  // an answer stands alone, a continuation behind what it continues
  const bool quiet = o.quiet || o.prompts.empty() || !asked.empty() || o.constraint.on() ||
                     loaded.model.spec().encoder != nullptr;
  const bool stream =
      !o.json && g.choices == 1 && prompts.size() + o.audio.size() == 1 && tokenizer != nullptr;
  if (stream) {
    if (!quiet) g.on_start = [&o] { fmt::print("{}", o.prompts.front()); };
    g.on_text = [](size_t, std::string_view text) {
      fmt::print("{}", text);
      flush_output();
    };
  }
  const infer::Generations result =
      o.beams.beams > 1 ? infer::beam_search(loaded.model, tokenizer, prompts, g, o.beams)
                        : infer::generate(loaded.model, tokenizer, prompts, g);
  const Speeds speeds{
      static_cast<double>(result.prefill_tokens) / std::max(result.prefill_seconds, 1e-9),
      static_cast<double>(result.decode_tokens) / std::max(result.decode_seconds, 1e-9)};
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
  // the others have said theirs
  for (const infer::Generation& row : result.rows)
    if (row.error) std::rethrow_exception(row.error);
  if (cancel_token().requested()) fail(ErrorKind::cancelled, "generate", "stopped on request");
  for (const infer::Generation& row : result.rows) ConstraintFlags::check(row);
  return kExitOk;
}

}  // namespace

std::function<int()> add_generate(CLI::App& app) {
  auto o = std::make_shared<GenerateArgs>();
  auto& g = o->generate;
  app.add_option("model", o->model, "a tessera or Hugging Face folder, or a GGUF file")->required();
  auto* prompt =
      add_texts(app, "--prompt", o->prompts, "the text to continue; repeat it for a batch");
  auto* ids = app.add_option("--input-ids", o->input_ids, "token ids instead of a text: 1,2,3")
                  ->delimiter(',')
                  ->check(not_negative());
  prompt->excludes(ids);
  auto* audio = app.add_option("--audio", o->audio,
                               "instead of a text: a WAV file of 16 kHz that an encoder with embed "
                               "\"frames\" hears; cut or filled to 30 s, as a log-mel "
                               "spectrogram; repeat it for a batch")
                    ->allow_extra_args(false);
  audio->excludes(prompt);
  audio->excludes(ids);
  app.add_option("--max-new-tokens", g.max_new_tokens, "at most so many")
      ->capture_default_str()
      ->check(not_negative());
  app.add_option("--min-new-tokens", g.min_new_tokens, "no end of text before so many")
      ->capture_default_str()
      ->check(not_negative());
  o->sampling.add(app, g.sampling);
  o->constraint.add(app);
  auto* seed = app.add_option("--seed", g.sampling.seed,
                              "of the random choices; a session goes on with its own")
                   ->capture_default_str()
                   ->check(cli::seed());
  app.add_option("--choices", g.choices,
                 "texts for each prompt, which is read once for them; each has random choices of "
                 "its own")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--logprobs", g.chances,
                 "with --json: ln p of every new token, and of the N most likely in its place, by "
                 "the model itself: before temperature, penalties and filters")
      ->check(CLI::Range(0, 1000));
  app.add_option("--beams", o->beams.beams,
                 "search for the most likely text with so many hypotheses instead of sampling or "
                 "guessing; 1 = no search")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--length-penalty", o->beams.length_penalty,
                 "with --beams: scores are log p / length^penalty; 0 = none, above 0 favours long "
                 "texts")
      ->capture_default_str()
      ->check(finite());
  app.add_option("--iterations", o->mask_predict.iterations,
                 "of a model that predicts all tokens of an answer at once (objective "
                 "mask_predict): so many times, between which the least likely ones are masked")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--length-candidates", o->mask_predict.lengths,
                 "of such a model: answers of so many lengths, of which the likeliest is taken")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  app.add_option("--answer-prefix", g.forced_begin,
                 "beside an encoder: ids that the answer begins with, such as a language; without "
                 "it what the model's generation config forces")
      ->delimiter(',');
  add_texts(app, "--stop", g.stop_strings, "end before this text; repeatable");
  app.add_option("--context", g.context,
                 "longest sequence, prompt included; 0 = what the model is made for")
      ->capture_default_str()
      ->check(not_negative());
  app.add_flag("--context-shift", g.shift,
               "where the context is full go on from the first tokens and the later half of the "
               "others, which are read anew");
  o->guesses.add(app);
  o->lines.add(app);
  o->kv.add(app);
  o->retrieve.add(app);
  o->products.add(app);
  auto* session = app.add_option(
      "--session", o->session,
      "a file that the text goes on from, where it exists, and that keeps where it ended; prompts "
      "continue its rows, none is needed");
  auto* prefix_cache =
      app.add_option("--prefix-cache", o->prefix_cache_mib,
                     "MiB for states of what prompts begin with: what they share is computed once")
          ->check(CLI::Range(int64_t{1}, int64_t{1} << 30));
  app.add_option("--snapshot-every", o->snapshot_every,
                 "with --prefix-cache, for states that cannot be cut (recurrent, windows): one "
                 "more snapshot after so many tokens of a prompt; 0 = none")
      ->capture_default_str()
      ->needs(prefix_cache)
      ->check(not_negative());
  app.add_option("--expert-memory", o->expert_mib,
                 "most MiB of routed experts that stay in memory, the most used ones; others are "
                 "read from the file again when they are chosen. 0 = any")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 40));
  app.add_flag("--ignore-eos", o->ignore_eos, "go on after the end-of-text token");
  app.add_flag("--parse-special", o->parse_special,
               "special tokens written in the prompt become those tokens");
  app.add_flag("--no-special", o->no_special, "add nothing around the prompt (no begin-of-text)");
  app.add_flag("--no-echo", o->quiet, "print only what is new");
  app.add_flag("--json", o->json,
               "text, token_ids, prompt_tokens, cached_tokens, finish_reason and speeds as JSON");
  app.add_option("--threads", o->threads, "0 = all cores")->check(CLI::Range(0, 4096));
  app.add_option("--adapter", o->adapters,
                 "an adapter beside the model's weights: a folder of PEFT or of a run; of several "
                 "the products add up")
      ->allow_extra_args(false);
  app.add_option("--families", o->families, "a folder of further family files");
  examples(
      app,
      {"tessera generate model.gguf --prompt 'Once upon a time' --max-new-tokens 100",
       "tessera generate folder --prompt 'A' --prompt 'B' --temperature 0.8 --top-p 0.95 "
       "--seed 7 --json",
       "tessera generate model.gguf --prompt 'Once upon a time' --temperature 1 --min-p 0.05 "
       "--dry-multiplier 0.8 --xtc-probability 0.5",
       "tessera generate model.gguf --prompt 'Once upon a time' --temperature 1 --mirostat 2",
       "tessera generate model.gguf --prompt 'Once upon a time' --lookup 3",
       "tessera generate run --prompt 'Once upon a time' --predictors --temperature 0",
       "tessera generate run --prompt 'Once upon a time' --predictors --guesses 3 --branches 3",
       "tessera generate model.gguf --prompt 'Once upon a time' --temperature 1 --choices 3",
       "tessera generate model.gguf --prompt 'Once upon a time' --json --logprobs 5",
       "tessera generate model.gguf --prompt 'A person as JSON: ' --json-schema person.json",
       "tessera generate model.gguf --prompt 'Is the sky blue? ' --regex 'yes|no'",
       "tessera generate model.gguf --prompt 'Once upon a time' --session tale",
       "tessera generate whisper --audio speech.wav --answer-prefix 50259,50359,50363",
       "tessera generate model.gguf --session tale",
       "tessera generate model.gguf --prompt 'Once upon a time' --context 512 --context-shift "
       "--max-new-tokens 5000",
       "tessera generate teacher --prompts-from questions.jsonl --answer-key answer > taught.jsonl",
       "tessera generate student --prompt 'a source' --iterations 4 --length-candidates 3",
       "tessera generate model.gguf --prompt 'A long text. Q1' --prompt 'A long text. Q2' "
       "--prefix-cache 256"});
  return [o, prompt, ids, audio, session, seed, &app] {
    if (o->lines.given())
      for (const char* other : {"--prompt", "--input-ids", "--audio", "--session", "--json"})
        if (app.count(other) > 0)
          fail(ErrorKind::usage, "generate",
               "{} beside --prompts-from, which answers the lines of a file; leave one of them out",
               other);
    if (prompt->empty() && ids->empty() && audio->empty() && session->empty() && !o->lines.given())
      fail(ErrorKind::usage, "generate",
           "nothing to continue; expected --prompt, --input-ids, --audio or --prompts-from");
    check_options(*o, app);
    o->guesses.check();
    if (app.count("--iterations") + app.count("--length-candidates") > 0)
      o->generate.mask_predict = o->mask_predict;
    o->seed_given = !seed->empty();
    return generate(*o);
  };
}

}  // namespace tessera::cli
