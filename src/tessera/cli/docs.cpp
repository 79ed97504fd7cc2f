#include <algorithm>
#include <filesystem>

#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/cli/cli.h"
#include "tessera/cli/doc_tables.h"
#include "tessera/model/mechanism_pages.h"
#include "tessera/spec/json.h"
#include "tessera/train/study/study_page.h"

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

using Files = std::vector<std::pair<fs::path, std::string>>;

/// Tables "results NAME" and figures NAME.svg of the studies of FOLDER/studies/results/NAME.json,
/// which are the report.json of compare. Adds figures that are not as they should be to `changed`.
std::vector<std::pair<std::string, std::string>> study_results(const fs::path& folder,
                                                               Files& changed) {
  std::vector<std::pair<std::string, std::string>> out;
  const fs::path results = folder / "studies" / "results";
  if (!fs::exists(results)) return out;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(results))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    const Json report = spec::read_json_file(file);
    const std::string name = file.stem().string();
    out.emplace_back("results " + name, train::study_markdown(report, file.string()));
    const fs::path figure = folder / "studies" / (name + ".svg");
    std::string svg = train::study_figure(report, file.string());
    if (!fs::exists(figure) || read_text_file(figure) != svg)
      changed.emplace_back(figure, std::move(svg));
  }
  return out;
}

/// Writes those pages of the folder whose tables are others than the program's, and figures of
/// studies.
int write_tables(const std::string& folder, const CLI::App& app) {
  auto tables = doc_tables(app);
  Files changed;
  for (auto& table : study_results(folder, changed)) tables.push_back(std::move(table));
  std::vector<std::string> missing;
  for (const auto& [name, table] : tables) missing.push_back(name);
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
               "keys, request fields, command-line options, released models, results of studies");
  examples(app, {"tessera docs --out docs", "tessera docs --out docs --tables"});
  const CLI::App* program = app.get_parent();
  return
      [out, tables, program] { return *tables ? write_tables(*out, *program) : write_pages(*out); };
}

}  // namespace tessera::cli
