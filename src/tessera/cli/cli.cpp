#include "tessera/base/version.h"
#include "tessera/cli/cli.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <new>
#include <optional>
#include <sstream>
#include <system_error>

#include <unistd.h>

#include "tessera/base/mapped_file.h"
#include "tessera/cli/help.h"
#include "tessera/cli/typed.h"
#include "tessera/format/file_source.h"
#include "tessera/hub/find_model.h"
#include "tessera/spec/plugin_files.h"

namespace tessera::cli {
namespace {

void on_signal(int signal) {
  // a second signal ends the program at once
  if (cancel_token().requested()) _exit(128 + signal);
  cancel_token().request(signal);
}

int exit_code_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
    case ErrorKind::spec:
      return kExitUsage;
    case ErrorKind::cancelled:
      return 128 + (cancel_token().signal() != 0 ? cancel_token().signal() : SIGINT);
    default:
      return kExitFailed;
  }
}

/// On one line, whatever names out of files the message holds: a terminal obeys control characters.
void complain(const std::string& message) {
  const std::string line = fmt::format("tessera: {}\n", format::printable(message, message.size()));
  std::fputs(line.c_str(), stderr);  // which may be closed as well: then the message is lost
}

/// Every number with a range goes through here: CLI::Range takes what is not a number for one.
CLI::Validator number(bool (*holds)(double), const char* name, const char* expected) {
  const auto check = [holds, expected](const std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (!text.empty() && *end == '\0' && holds(value)) return "";
    return fmt::format("{}; expected {}", text, expected);
  };
  return CLI::Validator(check, name);
}

/// "bench mixers": the verb that was read before the parser gave up; "" = none.
std::string verb_of(const CLI::App& app) {
  std::string name;
  for (const CLI::App* at = &app; !at->get_subcommands().empty();) {
    at = at->get_subcommands().front();
    name += (name.empty() ? "" : " ") + at->get_name();
  }
  return name;
}

/// The parser itself would only ask for a verb.
void expect_known(const std::string& verb, const CLI::App& app) {
  if (verb.starts_with("-")) return;
  std::vector<std::string> names;
  for (const CLI::App* sub : app.get_subcommands(nullptr)) names.push_back(sub->get_name());
  if (std::find(names.begin(), names.end(), verb) != names.end()) return;
  const std::string nearest = spec::nearest_name(verb, names);
  fail(ErrorKind::usage, "tessera", "there is no verb \"{}\"{}; `tessera --help` lists them", verb,
       nearest.empty() ? "" : fmt::format("; did you mean \"{}\"?", nearest));
}

/// Help and version, which the parser takes for errors.
int print_help(const CLI::App& app, const CLI::ParseError& asked) {
  std::ostringstream out, err;
  const int code = app.exit(asked, out, err);
  const std::string text = out.str() + err.str();
  if (std::fputs(text.c_str(), stdout) != EOF && std::fflush(stdout) == 0) return code;
  if (errno == EPIPE) return kExitReaderLeft;
  complain(fmt::format("[output] cannot write the help: {}", std::strerror(errno)));
  return kExitFailed;
}

}  // namespace

CancelToken& cancel_token() {
  static CancelToken token;
  return token;
}

CLI::Validator not_negative() {
  return number([](double x) { return x >= 0 && x <= 0x1p40; }, "NONNEGATIVE",
                "a number from 0, up to 2^40");
}
CLI::Validator positive() {
  return number([](double x) { return x > 0 && x <= 0x1p40; }, "POSITIVE",
                "a number above 0, up to 2^40");
}
CLI::Validator count_or_all() {
  return number([](double x) { return x == -1 || (x >= 0 && x <= 0x1p40); }, "COUNT",
                "a number from 0, up to 2^40, or -1 (no limit)");
}
int64_t without_limit(int64_t count) {
  return count < 0 ? int64_t{1} << 40 : count;
}
CLI::Validator fraction() {
  return number([](double x) { return x >= 0 && x <= 1; }, "FRACTION", "a number from 0 to 1");
}
CLI::Validator finite() {
  return number([](double x) { return std::isfinite(x); }, "FINITE", "a finite number");
}

CLI::Validator seed() {
  const auto check = [](const std::string& text) -> std::string {
    if (!text.empty() && text.find_first_not_of("0123456789") == std::string::npos) return "";
    return fmt::format("{}; expected a whole number from 0 to 2^64 - 1", text);
  };
  return CLI::Validator(check, "SEED");
}

namespace {

/// The numbers of "1,2,3"; nothing where one of them is empty or no number from 0 to 2^40.
std::optional<std::vector<int64_t>> ids_in(const std::string& text) {
  constexpr int64_t kMost = int64_t{1} << 40;
  std::vector<int64_t> out;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (;;) {
    const auto read = std::from_chars(at, end, out.emplace_back());
    if (read.ec != std::errc() || out.back() < 0 || out.back() > kMost) return std::nullopt;
    if (read.ptr == end) return out;
    if (*read.ptr != ',') return std::nullopt;
    at = read.ptr + 1;
  }
}

}  // namespace

CLI::Option* add_ids(CLI::App& app,
                     const std::string& name,
                     std::vector<int64_t>& ids,
                     const std::string& help) {
  const auto check = [](const std::string& text) -> std::string {
    if (ids_in(text)) return "";
    return fmt::format("{}; expected a number from 0, up to 2^40, or several with commas between",
                       text);
  };
  return app
      .add_option_function<std::vector<std::string>>(
          name,
          [&ids](const std::vector<std::string>& texts) {
            for (const std::string& text : texts) {
              const std::optional<std::vector<int64_t>> read = ids_in(text);
              ids.insert(ids.end(), read->begin(), read->end());
            }
          },
          help)
      ->check(CLI::Validator(check, "IDS"));
}

CLI::Option* add_texts(CLI::App& app,
                       const std::string& name,
                       std::vector<std::string>& texts,
                       const std::string& help) {
  return app.add_option(name, texts, help)->allow_extra_args(false);
}

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

void flush_output() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  if (errno == EPIPE) throw std::system_error(EPIPE, std::generic_category());
  fail(ErrorKind::resource, "output", "cannot write the result: {}", std::strerror(errno));
}

void examples(CLI::App& app, std::initializer_list<const char*> lines) {
  std::string text = "Examples:\n";
  for (const char* line : lines) text += std::string("  ") + line + "\n";
  app.footer(text);
}

void group(CLI::App& app, const char* name) {
  app.option_defaults()->group(name);
}

namespace {

struct NamedByOption {
  const CLI::Option* option;
  std::function<void()> find;
};

/// Of all verbs. An option is not looked at before the others are read: errors of those are
/// reported first.
std::vector<NamedByOption>& named_by_options() {
  static std::vector<NamedByOption> all;
  return all;
}

void find_named_models() {
  for (const auto& [option, find] : named_by_options())
    if (option->count() > 0) find();
}

std::string found_model(const std::string& text) {
  // the tokenizer that no file has
  return text == "bytes" ? text : hub::find_model(text).path;
}

}  // namespace

CLI::Option* names_model(CLI::Option* option, std::string& value) {
  named_by_options().push_back({option, [&value] { value = found_model(value); }});
  return option;
}
CLI::Option* names_model(CLI::Option* option, std::filesystem::path& value) {
  named_by_options().push_back({option, [&value] { value = found_model(value.string()); }});
  return option;
}
CLI::Option* names_model(CLI::Option* option, std::vector<std::string>& values) {
  named_by_options().push_back({option, [&values] {
                                  for (std::string& value : values) value = found_model(value);
                                }});
  return option;
}

CLI::Option* add_model(CLI::App& app, std::string& model, const std::string& help) {
  return names_model(app.add_option("model,-m,--model", model, help)->required(), model);
}

CLI::Option* add_out(CLI::App& app,
                     std::string& out,
                     const std::string& help,
                     const std::string& names) {
  return app.add_option("--out,-o,--output" + (names.empty() ? "" : "," + names), out, help);
}

void add_threads(CLI::App& app, int& threads) {
  app.add_option("--threads,-t", threads, "number of threads; 0 = all cores")
      ->check(CLI::Range(0, 4096));
}

std::string device_of_environment() {
  const char* const name = std::getenv("TESSERA_DEVICE");
  return name == nullptr || *name == '\0' ? "cpu" : name;
}

void note_cpu(const std::string& what) {
  if (const std::string device = device_of_environment(); device != "cpu")
    fmt::print(stderr, "tessera: {} computes on the CPU; TESSERA_DEVICE={} has no effect on it\n",
               what, device);
}

CLI::Option* add_families(CLI::App& app, std::string& folder) {
  return app.add_option("--families", folder, "folder with more model family files");
}

CLI::Option* add_adapters(CLI::App& app, std::vector<std::string>& adapters) {
  CLI::Option* option =
      app.add_option("--adapter,--lora", adapters,
                     "LoRA or other adapter to apply (PEFT folder, run, or ORG/NAME in the Hugging "
                     "Face cache); repeat to add several");
  return names_model(option->allow_extra_args(false), adapters);
}

void add_overrides(CLI::App& app, std::vector<std::string>& overrides, const std::string& what) {
  app.add_option("--set", overrides, "override a key of the " + what + ": path.to.key=value");
}

namespace {

/// Of the verb that runs.
std::vector<std::string>& plugin_files() {
  static std::vector<std::string> files;
  return files;
}

/// Adds the options of a verb, its help as the last.
std::function<int()> add(CLI::App& app, const Verb& verb) {
  const auto with_help = [&](CLI::App& of) {
    if (takes_plugins(verb.name)) {
      group(of, "Plugins");
      of.add_option("--plugin", plugin_files(),
                    "shared library with mechanisms of your own (`tessera new`); repeatable; in "
                    "addition to those of TESSERA_PLUGINS")
          ->allow_extra_args(false);
    }
    group(of, "Help");
    of.set_help_flag("-h,--help", "print this help");
    // CLI11 reads "" as 0, and a number that does not fit 64 bits as the nearest one that does
    for (CLI::Option* option : of.get_options())
      if (const std::string type = option->get_type_name();
          type == "INT" || type == "UINT" || type == "FLOAT")
        option->check([whole = type != "FLOAT"](const std::string& text) -> std::string {
          if (text.empty()) return "empty; expected a number";
          errno = 0;
          if (whole) std::strtoll(text.c_str(), nullptr, 0);
          return whole && errno == ERANGE ? text + "; expected a number that fits 64 bits" : "";
        });
  };
  auto runs = verb.add(app);
  with_help(app);
  for (CLI::App* below : app.get_subcommands(nullptr)) with_help(*below);
  return runs;
}

/// Of a verb with tensors that computes without --device.
void note_device(const CLI::App& verb) {
  const std::string name = verb.get_name();
  if (name == "doctor" || name == "docs" || verb.get_option_no_throw("--device") != nullptr) return;
  note_cpu(name);
}

}  // namespace

bool takes_plugins(std::string_view verb) {
  constexpr std::string_view kWithoutSpecs[] = {"runs", "train-tokenizer", "tokenize", "new",
                                                "pull", "models",          "rm",       "doctor"};
  return std::find(std::begin(kWithoutSpecs), std::end(kWithoutSpecs), verb) ==
         std::end(kWithoutSpecs);
}

int run(const std::vector<std::string>& args,
        const std::vector<Verb>& verbs,
        const TensorHooks& hooks) {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  // a closed pipe and a file at its limit are errors of the call that writes
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  install_truncation_guard();

  CLI::App app(
      "tessera: runs, fine-tunes, trains, quantizes and serves Transformer and post-Transformer "
      "models "
      "on the CPU",
      "tessera");
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("tessera ") + kVersion, "print the version");
  app.set_help_flag("-h,--help", "print this help");
  examples(app,
           {"tessera chat model.gguf", "tessera pull org/name && tessera chat org/name",
            "tessera generate model.gguf 'Once upon a time' -n 100", "tessera serve model.gguf",
            "tessera finetune model --data train.jsonl --out run", "tessera VERB --help"});
  std::vector<std::pair<CLI::App*, std::function<int()>>> runs;
  for (const Verb& verb : verbs) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.summary)->group(verb.group);
    if (verb.add != nullptr) runs.emplace_back(sub, add(*sub, verb));
  }
  try {
    if (args.size() > 1) expect_known(args[1], app);
    const std::vector<std::string> known = as_tessera(app, args);
    std::vector<std::string> reversed(known.rbegin(), known.rend() - 1);
    app.parse(reversed);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return print_help(app, error);
    const std::string verb = verb_of(app);
    complain(fmt::format("[{}] {}; see `tessera {}--help`", verb.empty() ? "tessera" : verb,
                         why(parsed_verb(app), error), verb.empty() ? "" : verb + " "));
    return kExitUsage;
  } catch (const Error& error) {
    complain(error.what());
    return exit_code_of(error.kind());
  }
  try {
    for (const auto& [sub, verb] : runs)
      if (sub->parsed()) {
        if (hooks.load_plugin != nullptr && takes_plugins(sub->get_name())) {
          for (const std::string& file : spec::plugins_of_environment()) hooks.load_plugin(file);
          for (const std::string& file : plugin_files()) hooks.load_plugin(file);
        }
        if (hooks.load_plugin != nullptr) note_device(parsed_verb(*sub));
        find_named_models();
        const int code = verb();
        flush_output();
        return code;
      }
  } catch (const Error& error) {
    std::fflush(stdout);
    complain(error.what());
    return exit_code_of(error.kind());
  } catch (const std::bad_alloc&) {
    complain("[memory] not enough memory; use a smaller model, batch or context");
    return kExitFailed;
  } catch (const std::filesystem::filesystem_error& error) {
    complain(fmt::format("[file] {}: {}", error.path1().string(), error.code().message()));
    return kExitFailed;
  } catch (const std::system_error& error) {  // fmt, of an output that takes no more
    // a reader that has enough, such as `head`, is no error
    if (error.code() == std::errc::broken_pipe) return kExitReaderLeft;
    complain(fmt::format("[system] {}", error.what()));
    return kExitFailed;
  } catch (const std::exception& error) {
    if (const std::string known = hooks.explain != nullptr ? hooks.explain(error) : "";
        !known.empty()) {
      complain(known);
      return kExitFailed;
    }
    // what follows the first line is a backtrace
    const std::string_view what = error.what();
    complain(fmt::format("[internal] {}", what.substr(0, what.find('\n'))));
    return kExitFailed;
  }
  return kExitUsage;
}

}  // namespace tessera::cli
