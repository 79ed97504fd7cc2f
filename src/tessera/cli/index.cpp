#include <chrono>
#include <filesystem>

#include <unistd.h>

#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/format/file_source.h"
#include "tessera/retrieve/retriever.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct IndexArgs {
  std::vector<std::string> paths, names;
  std::string model, output;
  retrieve::PassageOptions cut;
  bool anew = false, json = false;
  int threads = 0;
};

/// NAME.index beside NAME, which may be written with a slash behind it, or be "." itself.
fs::path beside(const std::string& path) {
  fs::path whole = fs::absolute(path).lexically_normal();
  if (whole.filename().empty()) whole = whole.parent_path();
  const fs::path given = fs::path(path).lexically_normal();
  const bool named = given.filename() == whole.filename();
  return (named ? given : whole).string() + ".index";
}

int make_index(IndexArgs& o) {
  if (o.threads > 0) set_thread_count(o.threads);
  const fs::path output = o.output.empty() ? beside(o.paths.front()) : fs::path(o.output);
  const retrieve::TextFiles files = retrieve::text_files(o.paths, o.names);
  for (const auto& [path, reason] : files.left_out)
    fmt::print(stderr, "tessera: left out {}: {}\n", path, format::printable(reason, 200));
  std::optional<retrieve::IndexFile> before;
  if (!o.anew && fs::exists(output / "index.json")) before = retrieve::open_index(output);
  const std::string model = fs::absolute(o.model).lexically_normal();
  const retrieve::Embedder embedder(model);
  retrieve::IndexOptions options{o.cut, {}, &cancel_token()};
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto begin = std::chrono::steady_clock::now();
  if (terminal)
    options.progress = [](size_t done, size_t all) {
      fmt::print(stderr, "\r{} of {} passages", done, all);
    };
  const retrieve::Indexed made =
      retrieve::make_index(model, embedder, files.paths, before ? &*before : nullptr, options);
  if (terminal) fmt::print(stderr, "\n");
  retrieve::write_index(output, made.index);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (o.json)
    print_json({{"index", output.string()},
                {"files", made.index.files.size()},
                {"left_out", files.left_out.size()},
                {"passages", made.index.passages.size()},
                {"kept", made.kept},
                {"width", made.index.width},
                {"seconds", seconds}});
  else
    fmt::print("{}: {} passages of {} files, {} of them as they were; {:.1f} s\n", output.string(),
               made.index.passages.size(), made.index.files.size(), made.kept, seconds);
  return kExitOk;
}

}  // namespace

std::function<int()> add_index(CLI::App& app) {
  auto o = std::make_shared<IndexArgs>();
  app.add_option("paths", o->paths, "text files, and folders of them")->required();
  app.add_option("--with", o->model, "the model that embeds the passages, such as all-MiniLM-L6-v2")
      ->required();
  app.add_option("--output", o->output,
                 "the index, a folder; default: the first path with .index behind it. One that is "
                 "there is brought up to date: only texts that are new to it are embedded");
  app.add_option("--name", o->names, "only files of folders whose name ends so, such as .md")
      ->allow_extra_args(false);
  app.add_option("--tokens", o->cut.tokens, "of a passage, at most")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--overlap", o->cut.overlap, "tokens that a passage repeats of the one before")
      ->capture_default_str()
      ->check(not_negative());
  app.add_flag("--anew", o->anew, "embed everything, whatever an index that is there has");
  app.add_flag("--json", o->json, "what was done as JSON");
  app.add_option("--threads", o->threads, "0 = all cores")->check(CLI::Range(0, 4096));
  examples(app,
           {"tessera index notes --with all-MiniLM-L6-v2",
            "tessera index docs README.md --with all-MiniLM-L6-v2 --name .md --output docs.index",
            "tessera search docs.index 'how is a model quantised?'"});
  return [o] { return make_index(*o); };
}

}  // namespace tessera::cli
