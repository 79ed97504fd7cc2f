#include "tessera/hub/pull.h"

#include <chrono>

#include <unistd.h>

#include "tessera/cli/cli.h"
#include "tessera/format/file_source.h"

namespace tessera::cli {
namespace {

struct PullArgs {
  std::string name, revision;
  hub::PullOptions options;
  bool json = false;
};

/// One line that renews itself on a terminal; elsewhere one every ten seconds.
class DownloadLine {
 public:
  void operator()(const hub::PullProgress& progress) {
    if (progress.files == 0) {  // the list of files, of which a wait is all there is to say
      fmt::print(stderr, "tessera: {}\n", format::printable(progress.waiting, 200));
      return;
    }
    const auto now = Clock::now();
    if (std::chrono::duration<double>(now - shown_).count() < (terminal_ ? 0.2 : 10)) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    if (first_ > progress.bytes_done) first_ = progress.bytes_done;
    const double speed = static_cast<double>(progress.bytes_done - first_) / std::max(seconds, 0.1);
    std::string text =
        fmt::format("{} of {} files, {} of {}", progress.files_done, progress.files,
                    hub::readable_bytes(progress.bytes_done), hub::readable_bytes(progress.bytes));
    if (speed > 1)
      text += fmt::format(
          ", {}/s, {:.0f} s left", hub::readable_bytes(static_cast<uint64_t>(speed)),
          static_cast<double>(progress.bytes - std::min(progress.bytes, progress.bytes_done)) /
              speed);
    if (!progress.waiting.empty()) text += "; " + format::printable(progress.waiting, 200);
    if (terminal_)
      fmt::print(stderr, "\r{:<100}", text);
    else
      fmt::print(stderr, "tessera: {}\n", text);
    std::fflush(stderr);
    any_ = true;
  }
  void end() {
    if (any_ && terminal_) fmt::print(stderr, "\n");
    any_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  bool terminal_ = isatty(STDERR_FILENO) != 0, any_ = false;
  Clock::time_point start_ = Clock::now(), shown_ = start_;
  uint64_t first_ = ~uint64_t{0};  // bytes of earlier calls
};

int pull(PullArgs& o) {
  auto name = hub::parse_model_name(o.name);
  if (!name)
    fail(ErrorKind::usage, "pull", "{}: expected ORG/NAME, ORG/NAME@REVISION or ORG/NAME:Q4_K_M",
         format::in_quotes(o.name));
  if (!o.revision.empty()) {
    if (!hub::is_revision(o.revision))
      fail(ErrorKind::usage, "pull", "--revision {}: expected a branch, a tag or a commit",
           format::in_quotes(o.revision));
    name->revision = o.revision;
  }
  hub::Wanted& wanted = o.options.wanted;
  if (const std::string selection = std::exchange(name->selection, ""); !selection.empty()) {
    if (selection.find_first_of("./") != std::string::npos)
      wanted.include.push_back(selection);
    else if (wanted.quantization.empty() || wanted.quantization == selection)
      wanted.quantization = selection;
    else
      fail(ErrorKind::usage, "pull", "{} and --quant {}; expected one quantization", o.name,
           wanted.quantization);
  }
  o.options.hub = hub::settings_of_environment();
  o.options.cancel = &cancel_token();
  DownloadLine line;
  o.options.progress = [&](const hub::PullProgress& progress) { line(progress); };
  hub::Pulled pulled;
  try {
    pulled = hub::pull(*name, o.options);
  } catch (...) {
    line.end();
    throw;
  }
  line.end();
  if (o.json) {
    print_json({{"name", name->text()},
                {"commit", pulled.commit},
                {"snapshot", pulled.snapshot.string()},
                {"files", pulled.files},
                {"bytes", pulled.bytes},
                {"downloaded", pulled.downloaded}});
    return kExitOk;
  }
  fmt::print(stderr, "tessera: {}: {} files, {}; {} downloaded\n", name->text(), pulled.files,
             hub::readable_bytes(pulled.bytes),
             pulled.downloaded == 0 ? "nothing" : hub::readable_bytes(pulled.downloaded));
  fmt::print("{}\n", pulled.snapshot.string());
  return kExitOk;
}

}  // namespace

std::function<int()> add_pull(CLI::App& app) {
  auto o = std::make_shared<PullArgs>();
  group(app, "Model");
  app.add_option("name", o->name, "ORG/NAME of the Hugging Face hub; also @REVISION, :Q4_K_M")
      ->required();
  app.add_option("--revision", o->revision, "branch, tag or commit; default: main");
  app.add_option("--include", o->options.wanted.include,
                 "only files that this glob fits, such as '*.json'; repeatable")
      ->allow_extra_args(false);
  app.add_option("--quant,--quantization", o->options.wanted.quantization,
                 "the GGUF file of this quantization, such as Q4_K_M");
  group(app, "Download");
  app.add_option("--parallel,--max-workers", o->options.parallel, "files at a time")
      ->capture_default_str()
      ->check(CLI::Range(1, 32));
  app.add_flag("--json", o->json, "result as JSON");
  examples(app, {"tessera pull Qwen/Qwen2.5-0.5B-Instruct",
                 "tessera pull Qwen/Qwen2.5-0.5B-Instruct-GGUF --quant Q4_K_M",
                 "tessera pull org/name --revision v1.0 --include '*.json'",
                 "HF_ENDPOINT=https://hub.example.org tessera pull org/name"});
  return [o] { return pull(*o); };
}

}  // namespace tessera::cli
