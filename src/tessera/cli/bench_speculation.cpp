// tessera bench speculative: speculative decoding against plain decoding, in turns, on one text.
#include "tessera/base/cpu.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/threads.h"
#include "tessera/cli/decoding_flags.h"
#include "tessera/cli/device_flag.h"
#include "tessera/cli/speculation_flags.h"
#include "tessera/cli/load_flags.h"
#include "tessera/cli/product_flags.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/infer/loading/load_model.h"

namespace tessera::cli {
namespace {

struct BenchSpeculationArgs {
  DeviceFlag device;
  std::string model, text;
  LoadFlags loading;
  SpeculationFlags who;
  ProductFlags products;
  infer::GenerateOptions generate;
  int64_t prompt_tokens = 512, draft_tokens = 4, branches = 3;
  int threads = 0, repeats = 3;
  bool json = false;
};

struct Way {
  std::string name;
  infer::Speculation how;
  std::vector<double> speeds = {};
  int64_t drafted = 0, accepted = 0;
};

/// Without, and with a fixed number, as many as pay, and branches, where the model takes these.
std::vector<Way> ways_of(const BenchSpeculationArgs& o, const model::ModelSpec& spec) {
  infer::Speculation how = o.generate.speculation;
  std::vector<Way> ways = {{"plain", {}}};
  how.draft_tokens = o.draft_tokens;
  ways.push_back({fmt::format("draft {}", o.draft_tokens), how});
  infer::Speculation adaptive = how;
  adaptive.draft_tokens = 8;
  adaptive.adaptive = true;
  ways.push_back({"draft auto", adaptive});
  if (o.branches > 1 && infer::no_branches_reason(spec).empty()) {
    how.tree_width = o.branches;
    ways.push_back({fmt::format("draft {}, branches {}", o.draft_tokens, o.branches), how});
    adaptive.tree_width = o.branches;
    ways.push_back({fmt::format("draft auto, branches {}", o.branches), adaptive});
  }
  return ways;
}

std::vector<int64_t> prompt_of(const BenchSpeculationArgs& o, const infer::LoadedModel& loaded) {
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "bench", "{} has no tokenizer for --text {}", o.model, o.text);
  const auto ids = loaded.tokenizer->encode(read_text_file(o.text, size_t{64} << 20));
  std::vector<int64_t> prompt(ids.begin(), ids.end());
  if (prompt.empty()) fail(ErrorKind::input, "bench", "{} is empty", o.text);
  prompt.resize(std::min(prompt.size(), static_cast<size_t>(o.prompt_tokens)));
  return prompt;
}

int bench_speculation(BenchSpeculationArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  auto& g = o.generate;
  const infer::LoadedModel loaded = o.device.loaded(
      [&] { return infer::load_model(o.model, o.loading.options(), {}, o.products.products()); });
  g.speculation = o.who.load(o.loading.others(), o.products.arithmetic(), o.device);
  if (!g.speculation.on()) g.speculation.lookup = 3;
  g.cancel = &cancel_token();
  const std::vector<int64_t> prompt = prompt_of(o, loaded);
  std::vector<Way> ways = ways_of(o, loaded.model.spec());
  std::vector<int64_t> text;
  for (int repeat = 0; repeat < o.repeats; ++repeat)
    for (Way& way : ways) {
      g.speculation = way.how;
      const infer::Generations got = infer::generate(loaded.model, nullptr, {prompt}, g);
      if (cancel_token().requested()) fail(ErrorKind::cancelled, "bench", "stopped on request");
      if (text.empty()) text = got.rows[0].token_ids;
      require(got.rows[0].token_ids == text, "bench", "{} changed the output", way.name);
      way.speeds.push_back(static_cast<double>(got.decode_tokens) /
                           std::max(got.decode_seconds, 1e-9));
      way.drafted = got.drafted_tokens;
      way.accepted = got.accepted_tokens;
    }
  Json rows = Json::array();
  double plain = 0;
  for (Way& way : ways) {
    std::sort(way.speeds.begin(), way.speeds.end());
    const double speed = way.speeds[way.speeds.size() / 2];
    if (plain == 0) plain = speed;
    rows.push_back({{"way", way.name},
                    {"tokens_per_s", speed},
                    {"times", speed / plain},
                    {"guessed_tokens", way.drafted},
                    {"draft_tokens", way.drafted},
                    {"accepted_tokens", way.accepted}});
    if (!o.json)
      fmt::print(
          "{:<24} {:>8.1f} tokens/s, speed-up {:>5.2f}x, {:>5} of {:>5} draft tokens accepted\n",
          way.name, speed, speed / plain, way.accepted, way.drafted);
  }
  if (o.json)
    print_json({{"rows", rows},
                {"model", o.model},
                {"tokens", text.size()},
                {"repeats", o.repeats},
                {"threads", thread_count()},
                {"cpu", cpu_info().model}});
  return kExitOk;
}

}  // namespace

std::function<int()> add_bench_speculation(CLI::App& app) {
  auto o = std::make_shared<BenchSpeculationArgs>();
  o->generate.max_new_tokens = 256;
  group(app, "Workload");
  add_model(app, o->model);
  app.add_option("--text,-f,--file", o->text, "file whose beginning is the prompt")->required();
  group(app, "Speculative decoding");
  o->who.add_who(app);
  SpeculationFlags::add_draft_tokens(
      app, o->draft_tokens, ", compared with auto; without a source of draft tokens: --lookup 3")
      ->check(CLI::Range(1, 64));
  SpeculationFlags::add_branches(app, o->branches, "; 1 = not measured");
  group(app, "Workload");
  app.add_option("--prompt-tokens", o->prompt_tokens, "maximum tokens of the prompt")
      ->capture_default_str()
      ->check(positive());
  app.add_option(infer::decoding_field("max_new_tokens").flag_names(), o->generate.max_new_tokens,
                 "new tokens per repetition")
      ->capture_default_str()
      ->check(positive());
  add_flag_of(app, infer::decoding_field("temperature"), o->generate.sampling.temperature)
      ->capture_default_str();
  app.add_option("--repeats,-r", o->repeats, "repetitions (median)")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  o->loading.add(app);
  app.add_flag("--json", o->json, "rows as JSON");
  group(app, "Precision and performance");
  o->products.add(app);
  o->device.add(app);
  add_threads(app, o->threads);
  examples(app, {"tessera bench speculative model.gguf --text notes.txt",
                 "tessera bench speculative run --text examples/data/shakespeare.txt --predictors "
                 "--draft-tokens 3"});
  return [o] { return bench_speculation(*o); };
}

}  // namespace tessera::cli
