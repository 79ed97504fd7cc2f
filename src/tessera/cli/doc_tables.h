// The tables of the documentation that the program knows best: sampling options, recipe keys,
// request fields, model types, command-line options. A page marks where one stands,
//
//   <!-- table: sampling -->
//   ...
//   <!-- end of table -->
//
// and `tessera docs` writes what lies between the marks.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

/// Name, Markdown. `app`: the program, with all of its verbs.
std::vector<std::pair<std::string, std::string>> doc_tables(const CLI::App& app);

/// The page with its tables replaced. Removes the names of those that it has from `missing`.
/// Throws Error(file) naming `path` at a mark that has no end or names no table.
std::string with_tables(const std::string& page,
                        const std::string& path,
                        const std::vector<std::pair<std::string, std::string>>& tables,
                        std::vector<std::string>& missing);

}  // namespace tessera::cli
