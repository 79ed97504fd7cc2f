// Layout of the help: examples, then groups of options with one column of names and one of
// descriptions.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// An option in the help.
struct OptionLine {
  std::string names;  // "-n, --max-new-tokens N"
  std::string text;   // "what it does (default 64; also --n-predict)"
};
/// `as_argument`: positional, without a name.
OptionLine line_of(const CLI::Option& option, bool as_argument);

/// -n, --max-new-tokens N   what it does (default 64; also --n-predict, --max-tokens)
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_help(const CLI::App* app,
                        std::string name,
                        CLI::AppFormatMode mode) const override;
  std::string make_option(const CLI::Option* option, bool is_positional) const override;
  std::string make_subcommand(const CLI::App* verb) const override;
};

}  // namespace tessera::cli
