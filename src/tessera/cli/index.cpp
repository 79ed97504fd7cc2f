#include <chrono>
#include <filesystem>

#include <unistd.h>

#include "tessera/base/threads.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/load_flags.h"
#include "tessera/format/file_source.h"
#include "tessera/retrieve/retriever.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

struct IndexArgs {
  std::vector<std::string> paths, names;
  std::string model, output;
  LoadFlags loading;
  retrieve::PassageOptions cut;
  bool rebuild = false, json = false;
  int threads = 0;
};

/// NAME.index next to NAME, which may end with a slash, or be "." itself.
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
    fmt::print(stderr, "tessera: skipped {}: {}\n", path, format::printable(reason, 200));
  std::optional<retrieve::IndexFile> before;
  if (!o.rebuild && fs::exists(output / "index.json")) before = retrieve::open_index(output);
  const std::string model = fs::absolute(o.model).lexically_normal();
  const retrieve::Embedder embedder(model, nullptr, o.loading.options());
  retrieve::IndexOptions options{o.cut, {}, &cancel_token()};
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto begin = std::chrono::steady_clock::now();
  if (terminal)
    options.progress = [](size_t done, size_t all) {
      fmt::print(stderr, "\r{} of {} chunks", done, all);
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
    fmt::print("{}: {} chunks of {} files, {} of them unchanged; {:.1f} s\n", output.string(),
               made.index.passages.size(), made.index.files.size(), made.kept, seconds);
  return kExitOk;
}

}  // namespace

std::function<int()> add_index(CLI::App& app) {
  auto o = std::make_shared<IndexArgs>();
  group(app, "Input");
  app.add_option("paths", o->paths, "text files and folders of them")->required();
  names_model(app.add_option("--with,-m,--model,--embedder", o->model,
                             "embedding model, such as all-MiniLM-L6-v2")
                  ->required(),
              o->model);
  app.add_option("--name", o->names, "only files with this suffix, such as .md; repeatable")
      ->allow_extra_args(false);
  group(app, "Chunking");
  app.add_option("--tokens,--chunk-size", o->cut.tokens, "chunk size, tokens")
      ->capture_default_str()
      ->check(positive());
  app.add_option("--overlap,--chunk-overlap", o->cut.overlap, "chunk overlap, tokens")
      ->capture_default_str()
      ->check(not_negative());
  group(app, "Output");
  add_out(app, o->output,
          "index folder; default: the first path plus .index. An index that exists is updated: "
          "only new texts are embedded");
  app.add_flag("--rebuild,--anew", o->rebuild, "rebuild from scratch, all texts embedded again");
  app.add_flag("--json", o->json, "report as JSON");
  group(app, "Precision and performance");
  add_threads(app, o->threads);
  group(app, "Model");
  o->loading.add(app);
  examples(app, {"tessera index notes --with all-MiniLM-L6-v2",
                 "tessera index docs README.md --with all-MiniLM-L6-v2 --name .md --out docs.index",
                 "tessera search docs.index 'how is a model quantized?'"});
  return [o] { return make_index(*o); };
}

}  // namespace tessera::cli
