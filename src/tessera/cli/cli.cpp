#include "tessera/cli/cli.h"

#include <csignal>
#include <cstdio>
#include <new>

#include <unistd.h>

#include "tessera/base/mapped_file.h"

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

void complain(const std::string& message) {
  fmt::print(stderr, "tessera: {}\n", message.substr(0, message.find('\n')));
}

}  // namespace

CancelToken& cancel_token() {
  static CancelToken token;
  return token;
}

void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

void examples(CLI::App& app, std::initializer_list<const char*> lines) {
  std::string text = "Examples:\n";
  for (const char* line : lines) text += std::string("  ") + line + "\n";
  app.footer(text);
}

int run(int argc, char** argv, const std::vector<Verb>& verbs, const std::vector<Verb>& elsewhere) {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::signal(SIGPIPE, SIG_DFL);
  install_truncation_guard();

  CLI::App app("tessera: Transformer architectures, and what came after them, as data", "tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", "tessera 0.1.0");
  app.footer("`tessera VERB --help` explains a verb, with examples.");
  std::vector<std::pair<CLI::App*, std::function<int()>>> runs;
  for (const Verb& verb : verbs) {
    CLI::App* sub = app.add_subcommand(verb.name, verb.summary);
    runs.emplace_back(sub, verb.add(*sub));
  }
  for (const Verb& verb : elsewhere) app.add_subcommand(verb.name, verb.summary);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help and version
    complain(fmt::format("{}; `tessera --help` lists what there is", error.what()));
    return kExitUsage;
  }
  try {
    for (const auto& [sub, verb] : runs)
      if (sub->parsed()) {
        const int code = verb();
        if (std::fflush(stdout) != 0)
          fail(ErrorKind::resource, "output", "cannot write the result: {}", std::strerror(errno));
        return code;
      }
  } catch (const Error& error) {
    std::fflush(stdout);
    complain(error.what());
    return exit_code_of(error.kind());
  } catch (const std::bad_alloc&) {
    complain("[memory] not enough memory; use a smaller model, batch or context");
    return kExitFailed;
  } catch (const std::exception& error) {
    complain(fmt::format("[internal] {}", error.what()));
    return kExitFailed;
  }
  return kExitUsage;
}

}  // namespace tessera::cli
