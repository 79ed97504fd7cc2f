// Generated tables of the documentation: sampling options, recipe keys, request fields, model
// types, values of model families, command-line options, forms of operations, storage types on a
// GPU, released models (preset_tables.h). A page marks their place,
//
//   <!-- table: sampling -->
//   ...
//   <!-- end of table -->
//
// and `tessera docs` writes the text between the marks.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

/// Name, Markdown. `app`: the program with all of its commands.
std::vector<std::pair<std::string, std::string>> doc_tables(const CLI::App& app);

/// The page with its tables replaced. Removes the names of its tables from `missing`. Throws
/// Error(file) naming `path` for a mark without end or with an unknown table.
std::string with_tables(const std::string& page,
                        const std::string& path,
                        const std::vector<std::pair<std::string, std::string>>& tables,
                        std::vector<std::string>& missing);

}  // namespace tessera::cli
