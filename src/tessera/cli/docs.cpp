#include <filesystem>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/doc_tables.h"
#include "tessera/model/mechanism_pages.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

int write_pages(const std::string& out) {
  for (const auto& [path, content] : model::generated_pages()) {
    const fs::path file = fs::path(out) / path;
    create_folder(file.parent_path());
    write_file_atomically(file, content);
    fmt::print("{}\n", file.string());
  }
  return kExitOk;
}

/// Writes those pages of the folder whose tables are others than the program's.
int write_tables(const std::string& folder, const CLI::App& app) {
  const auto tables = doc_tables(app);
  std::vector<std::string> missing;
  for (const auto& [name, table] : tables) missing.push_back(name);
  std::vector<std::pair<fs::path, std::string>> changed;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".md") continue;
    const std::string before = read_text_file(entry.path());
    std::string after = with_tables(before, entry.path().string(), tables, missing);
    if (after != before) changed.emplace_back(entry.path(), std::move(after));
  }
  if (!missing.empty())
    fail(ErrorKind::file, "docs", "no page of {} has the mark of a table: <!-- table: {} -->",
         folder, missing.front());
  for (const auto& [path, page] : changed) {
    write_file_atomically(path, page);
    fmt::print("{}\n", path.string());
  }
  return kExitOk;
}

}  // namespace

std::function<int()> add_docs(CLI::App& app) {
  auto out = std::make_shared<std::string>("docs");
  auto tables = std::make_shared<bool>(false);
  group(app, "Output");
  add_out(app, *out, "folder to write")->capture_default_str();
  app.add_flag("--tables", *tables,
               "update the tables in the pages of the folder instead: sampling options, recipe "
               "keys, request fields, command-line options, released models");
  examples(app, {"tessera docs --out docs", "tessera docs --out docs --tables"});
  const CLI::App* program = app.get_parent();
  return
      [out, tables, program] { return *tables ? write_tables(*out, *program) : write_pages(*out); };
}

}  // namespace tessera::cli
