#include "tessera/infer/beam.h"

#include "tessera/base/threads.h"
#include "tessera/cli/kv_flags.h"
#include "tessera/infer/load_model.h"

namespace tessera::cli {
namespace {

struct Options {
  std::string model, families, draft;
  std::vector<std::string> prompts;
  std::vector<int64_t> input_ids;
  infer::GenerateOptions generate;
  infer::BeamOptions beams{.beams = 1};
  KvFlags kv;
  bool ignore_eos = false, json = false, parse_special = false, no_special = false, quiet = false;
  int threads = 0;
};

std::vector<std::vector<int64_t>> prompt_ids(const Options& o, const infer::LoadedModel& loaded) {
  if (!o.input_ids.empty()) return {o.input_ids};
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "generate", "{} has no tokenizer; give --input-ids", o.model);
  std::vector<std::vector<int64_t>> prompts;
  for (const std::string& text : o.prompts) {
    const auto ids = loaded.tokenizer->encode(
        text, {.add_special = !o.no_special, .parse_special = o.parse_special});
    prompts.emplace_back(ids.begin(), ids.end());
  }
  return prompts;
}

int generate(Options& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  o.generate.sampling.check();
  o.generate.kv = o.kv.options();
  const infer::LoadedModel loaded = infer::load_model(o.model, {o.families});
  const auto prompts = prompt_ids(o, loaded);
  if (!o.ignore_eos && loaded.tokenizer && loaded.tokenizer->eos())
    o.generate.stop_ids.push_back(*loaded.tokenizer->eos());
  o.generate.cancel = &cancel_token();
  std::optional<infer::LoadedModel> draft;
  if (!o.draft.empty())
    o.generate.speculation.draft = &draft.emplace(infer::load_model(o.draft, {o.families})).model;
  // an answer stands alone, a continuation behind what it continues
  const bool quiet = o.quiet || loaded.model.spec().encoder != nullptr;
  const bool stream = !o.json && prompts.size() == 1 && loaded.tokenizer.has_value();
  if (stream) {
    if (!quiet && !o.prompts.empty()) fmt::print("{}", o.prompts.front());
    o.generate.on_text = [](size_t, std::string_view text) {
      fmt::print("{}", text);
      std::fflush(stdout);
    };
  }
  const text::Tokenizer* tokenizer = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
  const infer::Generations result =
      o.beams.beams > 1 ? infer::beam_search(loaded.model, tokenizer, prompts, o.generate, o.beams)
                        : infer::generate(loaded.model, tokenizer, prompts, o.generate);
  const double prefill =
      static_cast<double>(result.prefill_tokens) / std::max(result.prefill_seconds, 1e-9);
  const double decode =
      static_cast<double>(result.decode_tokens) / std::max(result.decode_seconds, 1e-9);
  if (o.json) {
    Json rows = Json::array();
    for (const infer::Generation& row : result.rows) {
      rows.push_back({{"text", row.text},
                      {"token_ids", row.token_ids},
                      {"prompt_tokens", row.prompt_tokens},
                      {"finish_reason", row.finish_reason},
                      {"prefill_tokens_per_s", prefill},
                      {"decode_tokens_per_s", decode}});
      if (o.generate.speculation.on()) {
        rows.back()["guessed_tokens"] = result.guessed_tokens;
        rows.back()["accepted_tokens"] = result.accepted_tokens;
      }
    }
    print_json(rows.size() == 1 ? rows[0] : rows);
  } else {
    if (stream) {
      fmt::print("\n");
    } else {
      for (size_t r = 0; r < result.rows.size(); ++r) {
        const auto& row = result.rows[r];
        if (!loaded.tokenizer)
          fmt::print("{}\n", fmt::join(row.token_ids, " "));
        else
          fmt::print("{}{}{}\n", r > 0 ? "---\n" : "",
                     quiet || o.prompts.empty() ? "" : o.prompts[r], row.text);
      }
    }
    std::fflush(stdout);
    fmt::print(stderr, "prefill {} tokens, {:.1f} tokens/s; decode {} tokens, {:.1f} tokens/s\n",
               result.prefill_tokens, prefill, result.decode_tokens, decode);
    if (o.generate.speculation.on())
      fmt::print(stderr, "{} of {} guesses were right\n", result.accepted_tokens,
                 result.guessed_tokens);
  }
  if (cancel_token().requested()) fail(ErrorKind::cancelled, "generate", "stopped on request");
  return kExitOk;
}

}  // namespace

std::function<int()> add_generate(CLI::App& app) {
  auto o = std::make_shared<Options>();
  auto& g = o->generate;
  app.add_option("model", o->model, "a tessera or Hugging Face folder, or a GGUF file")->required();
  auto* prompt =
      app.add_option("--prompt", o->prompts, "the text to continue; repeat it for a batch");
  auto* ids = app.add_option("--input-ids", o->input_ids, "token ids instead of a text: 1,2,3")
                  ->delimiter(',');
  prompt->excludes(ids);
  app.add_option("--max-new-tokens", g.max_new_tokens, "at most so many")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--temperature", g.sampling.temperature, "0 = the most likely token each time")
      ->capture_default_str();
  app.add_option("--top-k", g.sampling.top_k, "only the k most likely; 0 = all")
      ->capture_default_str();
  app.add_option("--top-p", g.sampling.top_p, "only the most likely that make up p")
      ->capture_default_str();
  app.add_option("--min-p", g.sampling.min_p, "only those at least so likely, relative to the best")
      ->capture_default_str();
  app.add_option("--repetition-penalty", g.sampling.repetition_penalty,
                 "above 1: tokens seen become less likely")
      ->capture_default_str();
  app.add_option("--seed", g.sampling.seed, "of the random choices")->capture_default_str();
  app.add_option("--beams", o->beams.beams,
                 "search for the most likely text with so many hypotheses instead of sampling; 1 = "
                 "no search")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--length-penalty", o->beams.length_penalty,
                 "with --beams: scores are log p / length^penalty; 0 = none, above 0 favours long "
                 "texts")
      ->capture_default_str();
  app.add_option("--stop", g.stop_strings, "end before this text; repeatable");
  app.add_option("--context", g.context,
                 "longest sequence, prompt included; 0 = what the model is made for")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  auto* draft = app.add_option(
      "--draft", o->draft, "a smaller model with the same tokens guesses; the text is the same");
  app.add_option("--lookup", g.speculation.lookup,
                 "guess what followed the last (at most N) tokens where they stood before")
      ->excludes(draft)
      ->check(CLI::PositiveNumber);
  app.add_option("--guesses", g.speculation.guesses, "of --draft and --lookup, per step")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  o->kv.add(app);
  app.add_flag("--ignore-eos", o->ignore_eos, "go on after the end-of-text token");
  app.add_flag("--parse-special", o->parse_special,
               "special tokens written in the prompt become those tokens");
  app.add_flag("--no-special", o->no_special, "add nothing around the prompt (no begin-of-text)");
  app.add_flag("--no-echo", o->quiet, "print only what is new");
  app.add_flag("--json", o->json,
               "text, token_ids, prompt_tokens, finish_reason and speeds as JSON");
  app.add_option("--threads", o->threads, "0 = all cores")->check(CLI::Range(0, 4096));
  app.add_option("--families", o->families, "a folder of further family files");
  examples(app, {"tessera generate model.gguf --prompt 'Once upon a time' --max-new-tokens 100",
                 "tessera generate folder --prompt 'A' --prompt 'B' --temperature 0.8 --top-p 0.95 "
                 "--seed 7 --json",
                 "tessera generate model.gguf --prompt 'Once upon a time' --lookup 3",
                 "tessera generate model.gguf --prompt 'Once upon a time' --kv-type int8"});
  return [o, prompt, ids] {
    if (prompt->empty() && ids->empty())
      fail(ErrorKind::usage, "generate", "nothing to continue; expected --prompt or --input-ids");
    return generate(*o);
  };
}

}  // namespace tessera::cli
