// Command-line compatibility with llama.cpp, vLLM and transformers, and errors for unknown options.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// The name of an option in an argument, up to its `=`, with `-` for `_`.
std::string option_name(const std::string& arg);

/// The arguments, the program first, with options in the spelling of `app`: `_` in long options
/// becomes `-`, names of at least two letters after one dash (-np, -ctk) become tessera's, cache
/// types that only llama.cpp has become those of the same size, and the model's option comes first.
/// Other short and long names are aliases of the options themselves. Values do not change. Throws
/// Error(usage) for an option of another program without a counterpart here, with a remedy.
std::vector<std::string> as_tessera(const CLI::App& app, std::vector<std::string> args);

/// The parse error in one line: an unknown option with the nearest known one, an extra argument, a
/// missing value, a value with what was expected.
std::string why(const CLI::App& app, const CLI::ParseError& error);

/// The command that was parsed before the error, or `app`.
const CLI::App& parsed_verb(const CLI::App& app);

}  // namespace tessera::cli
