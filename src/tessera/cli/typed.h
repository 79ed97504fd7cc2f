// The command line as people type it who know llama.cpp, vLLM or transformers, and what is said of
// options that a verb does not have.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// The name of an option in an argument, up to its `=`, with `-` for `_`.
std::string option_name(const std::string& arg);

/// The arguments, the program first, with options as the verbs of `app` know them: `_` in the name
/// of a long option is `-`, names of two and more letters behind one dash (-np, -ctk) become
/// tessera's, cache types that llama.cpp alone has become those of the same size, and the model's
/// option stands in front. Other short and long names are names of the options themselves. Values
/// stay as they are. Throws Error(usage) for an option of another program that has no counterpart
/// here, with what to do instead.
std::vector<std::string> as_tessera(const CLI::App& app, std::vector<std::string> args);

/// Why parsing failed, in one line: an option that the verb does not have with the nearest one that
/// it has, an argument too many, a value that lacks.
std::string why(const CLI::App& app, const CLI::ParseError& error);

/// The verb that was read before the parser gave up, or `app`.
const CLI::App& parsed_verb(const CLI::App& app);

}  // namespace tessera::cli
