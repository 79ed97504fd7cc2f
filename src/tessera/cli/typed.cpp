#include "tessera/cli/typed.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/core.h>

#include "tessera/base/error.h"
#include "tessera/spec/json.h"

namespace tessera::cli {
namespace {

/// The parser takes names of one letter after one dash, so that these are rewritten before it
/// reads them.
constexpr std::pair<std::string_view, std::string_view> kRewritten[] = {
    {"-np", "--parallel"},      {"-md", "--draft"},         {"-sys", "--system"},
    {"-ctk", "--cache-type-k"}, {"-ctv", "--cache-type-v"}, {"-jf", "--json-schema"},
    {"-to", "--deadline"},      {"-st", "--single-turn"},   {"-dev", "--device"},
};

struct Foreign {
  std::vector<std::string_view> names;
  const char* instead;
  const char* in_chat = nullptr;  // the message there, if another
  /// The message is this one for verbs with --device, for others that they compute on the CPU.
  const char* with_device = nullptr;
};
/// Options that people type who come from elsewhere, and that mean nothing here; a verb may have
/// one of its own by such a name.
const std::vector<Foreign>& foreign() {
  static const std::vector<Foreign> all = {
      {.names = {"-ngl", "--gpu-layers", "--n-gpu-layers"},
       .instead = nullptr,
       .with_device = "expected --device cuda, which computes all layers on a GPU"},
      {.names = {"-sm", "--split-mode", "-mg", "--main-gpu", "-ts", "--tensor-split",
                 "--tensor-parallel-size"},
       .instead = nullptr,
       .with_device = "a model computes on one device; expected --device cuda:N"},
      {.names = {"-nkvo", "--no-kv-offload", "-ot", "--override-tensor", "-cmoe", "--cpu-moe",
                 "-ncmoe", "--n-cpu-moe", "--gpu-memory-utilization"},
       .instead = nullptr,
       .with_device = "weights and KV cache are on one device (--device); leave it out"},
      {.names = {"--device"}, .instead = nullptr, .with_device = ""},
      {{"-b", "--batch-size", "-ub", "--ubatch-size"},
       "tessera chooses how many tokens of a prompt are read at once (in serve by --step-ms); "
       "leave "
       "it out"},
      {{"--mmproj", "-mm", "--image", "--no-mmproj"},
       "text generation reads no images; leave it out"},
      {{"--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale",
        "--yarn-orig-ctx", "--yarn-ext-factor", "--yarn-attn-factor", "--yarn-beta-slow",
        "--yarn-beta-fast"},
       "positions are scaled as the model's files say (rope_scaling of config.json, GGUF "
       "metadata); "
       "leave it out"},
      {{"-tb", "--threads-batch"}, "--threads is for prompts and for decoding; leave it out"},
      {{"--numa"}, "the system places threads and memory; leave it out"},
      {{"--warmup", "--no-warmup"}, "there is no warm-up run; leave it out"},
      {{"--metrics", "--props"}, "/metrics and /props are always served; leave it out"},
      {{"-fa", "--flash-attn"}, "attention never stores all scores; leave it out"},
      {{"--mlock", "--no-mmap", "-nommap"}, "weights are memory-mapped; leave it out"},
      {{"-cnv", "--conversation", "-i", "--interactive"},
       "use `tessera chat`",
       "`tessera chat` is a conversation; leave it out"},
      {{"--single-turn"},
       "expected the question on standard input: echo QUESTION | tessera chat MODEL"},
      {{"-e", "--escape", "--no-escape"},
       "prompts are taken as they are; a line break in a shell is $'one\\ntwo'"},
      {{"--jinja", "--no-jinja"}, "chat templates of models (Jinja) are always used; leave it out"},
      {{"-co", "--color"}, "output has no colours; leave it out"},
      {{"-no-cnv", "--no-conversation"},
       "`tessera generate` has no conversation; leave it out",
       "use `tessera generate`"},
      {{"--embedding", "--embeddings", "--reranking", "--rerank"},
       "what a model can do follows from its files; leave it out"},
      {{"-v", "--verbose", "--log-disable", "--no-perf", "--simple-io"},
       "standard output has the text alone, and standard error a few lines; leave it out"},
      {{"--override-kv"}, "expected a file with other metadata; keys are not replaced on loading"},
      {{"--slots", "--no-slots", "--webui", "--no-webui", "--cache-reuse"},
       "the page and shared prefixes are always there; leave it out"},
      {{"--bf16", "--fp16"}, "expected --set train.precision=bf16 or fp16"},
      {{"-hf", "--hf-repo", "-hff", "--hf-file", "-mu", "--model-url"},
       "expected `tessera pull ORG/NAME` once, and then ORG/NAME or ORG/NAME:Q4_K_M as the model"},
      {{"-cb", "--cont-batching", "-nocb", "--no-cont-batching"},
       "requests are always batched continuously; leave it out"},
      {{"--tensor-type"}, "expected --rule NAMES=TYPE (in NAMES '*' is any text)"},
      {{"--outtype"}, "convert keeps the stored types; expected `tessera quantize --type TYPE`"},
      {{"--lora-scaled", "--lora-init-without-apply"}, "expected --adapter FOLDER"},
  };
  return all;
}

bool is_option(std::string_view arg) {
  return arg.size() > 1 && arg[0] == '-' && arg != "--" && (arg[1] < '0' || arg[1] > '9') &&
         arg[1] != '.' && arg[1] != ' ';
}
std::string_view name_of(std::string_view arg) {
  return arg.substr(0, arg.find('='));
}

/// The argument under the name that verbs have for it.
std::string renamed(const std::string& arg) {
  const std::string rest = arg.substr(name_of(arg).size());
  if (arg.starts_with("--")) return option_name(arg) + rest;
  for (const auto& [typed, name] : kRewritten)
    if (name_of(arg) == typed) return std::string(name) + rest;
  return arg;
}

/// An option with its value, where that is the next argument; or one argument that is no option.
struct Item {
  std::vector<std::string> words;
  std::string name;  // "" = no option
  bool own = false;  // the verb has such an option

  std::string value() const {
    if (words.size() > 1) return words[1];
    const size_t equals = words[0].find('=');
    return equals == std::string::npos ? "" : words[0].substr(equals + 1);
  }
};

bool takes_value(const CLI::App& app, const std::string& arg) {
  const bool attached =
      arg.find('=') != std::string::npos || (!arg.starts_with("--") && arg.size() > 2);
  if (attached) return false;
  const CLI::Option* option = app.get_option_no_throw(arg);
  return option != nullptr && option->get_items_expected_max() > 0;
}

std::vector<Item> items_of(const CLI::App& app, const std::vector<std::string>& args) {
  std::vector<Item> items;
  const CLI::App* at = &app;
  size_t i = 1;
  for (; i < args.size() && args[i] != "--"; ++i) {
    if (!is_option(args[i])) {
      for (const CLI::App* below : at->get_subcommands(nullptr))
        if (below->check_name(args[i])) {
          at = below;
          break;
        }
      items.push_back({{args[i]}, ""});
      continue;
    }
    const std::string arg = renamed(args[i]), name(name_of(arg));
    items.push_back({{arg}, name, at->get_option_no_throw(name) != nullptr});
    if (i + 1 < args.size() && takes_value(*at, arg)) items.back().words.push_back(args[++i]);
  }
  for (; i < args.size(); ++i) items.push_back({{args[i]}, ""});
  return items;
}

struct Command {
  std::string name;  // "bench quant"
  bool has_device;
};

/// The verb of these items, with the verb below it.
Command command_of(const CLI::App& app, const std::vector<Item>& items) {
  const CLI::App* at = &app;
  std::string name;
  for (const Item& item : items)
    for (const CLI::App* below : at->get_subcommands(nullptr))
      if (item.name.empty() && below->check_name(item.words[0])) {
        at = below;
        name += (name.empty() ? "" : " ") + item.words[0];
        break;
      }
  return {name.empty() ? "tessera" : name, at->get_option_no_throw("--device") != nullptr};
}

void refuse_foreign(const CLI::App& app, const std::vector<Item>& items) {
  if (items.empty()) return;
  const std::string verb = items[0].name.empty() ? items[0].words[0] : "tessera";
  for (const Item& item : items)
    for (const Foreign& one : foreign())
      if (!item.own &&
          std::find(one.names.begin(), one.names.end(), item.name) != one.names.end()) {
        const Command command = command_of(app, items);
        fail(ErrorKind::usage, verb, "{}: {}", item.name,
             one.with_device != nullptr                 ? command.has_device
                                                              ? one.with_device
                                                              : command.name + " computes on the CPU; leave it out"
             : verb == "chat" && one.in_chat != nullptr ? one.in_chat
                                                        : one.instead);
      }
}

/// -m FILE and --model FILE to the front: a positional argument would take the model's place.
void model_first(std::vector<Item>& items) {
  if (items.size() < 3) return;
  const auto found = std::find_if(items.begin() + 1, items.end(), [](const Item& item) {
    return item.name == "--model" || item.words[0].starts_with("-m");
  });
  if (found != items.end()) std::rotate(items.begin() + 1, found, found + 1);
}

/// The type of the same size, of those that llama.cpp has and tessera does not.
std::string cache_type(const std::string& type) {
  return type == "q8_0" ? "int8" : type == "q4_0" ? "int4" : type;
}

/// Keys and values have one type here, so that two equal ones are one.
void merge_cache_types(std::vector<Item>& items) {
  const auto is_type = [](const Item& item) {
    return item.name == "--cache-type-k" || item.name == "--cache-type-v";
  };
  const auto first = std::find_if(items.begin(), items.end(), is_type);
  if (first == items.end()) return;
  const std::string type = first->value();
  if (std::count_if(first, items.end(), is_type) == 1)
    fmt::print(stderr, "tessera: {} {}: keys and values have one type; this sets both\n",
               first->name, type);
  for (auto item = first + 1; item != items.end(); ++item)
    if (is_type(*item) && item->name != first->name && item->value() != type)
      fail(ErrorKind::usage, items[0].words[0],
           "{} {} with {} {}: keys and values have one type; expected the same of both, or "
           "--kv-type",
           first->name, type, item->name, item->value());
  items.erase(
      std::remove_if(first + 1, items.end(),
                     [&](const Item& item) { return is_type(item) && item.value() == type; }),
      items.end());
  if (cache_type(type) != type) first->words = {first->name, cache_type(type)};
}

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> out;
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) out.push_back(name);
  return out;
}

/// Of an option that is not there.
std::string unknown_option(const CLI::App& app, const std::string& arg) {
  const std::string name(name_of(arg));
  const std::string nearest =
      name.starts_with("--") ? spec::nearest_name(name.substr(2), long_names(app)) : "";
  return "there is no option " + name.substr(0, 60) +
         (nearest.empty() ? "" : "; did you mean --" + nearest + "?");
}

std::string too_many(const CLI::App& app, const std::vector<std::string>& rest) {
  const std::vector<const CLI::Option*> options = app.get_options();
  const bool takes = std::any_of(options.begin(), options.end(), [](const CLI::Option* option) {
    return option->get_positional();
  });
  return "unexpected argument \"" + rest[0].substr(0, 60) + "\"" +
         (takes ? "; put a value of several words in quotes" : "");
}

/// The parser names an option with a positional form by its flag.
std::string required(const CLI::App& app, const std::string& otherwise) {
  for (const CLI::Option* option : app.get_options())
    if (option->get_required() && option->count() == 0)
      return (option->get_positional() ? option->get_name(true) : option->get_name()) +
             " is required";
  return otherwise;
}

/// What the parser says of a value, in the form of all errors: "--n: 1.5; expected a whole number".
std::string of_value(const CLI::App& app, const std::string& what) {
  constexpr std::string_view kUnread = "Could not convert: ", kValue = ": Value ",
                             kOutside = " not in range ", kUnknown = " not in {";
  if (what.starts_with(kUnread)) {
    const size_t equals = std::min(what.find(" = "), what.size());
    const std::string name = what.substr(kUnread.size(), equals - kUnread.size()),
                      value = what.substr(std::min(equals + 3, what.size()));
    const CLI::Option* option = app.get_option_no_throw(name);
    const std::string type = option == nullptr ? "" : option->get_type_name();
    const bool whole = type.starts_with("INT") || type.starts_with("UINT"),
               digits = value.find_first_not_of("+-0123456789") == std::string::npos;
    return fmt::format("{}: {}; expected {}", name, value,
                       !whole   ? "a number"
                       : digits ? "a number nearer to 0"
                                : "a whole number");
  }
  const size_t colon = what.find(kValue), outside = what.rfind(kOutside),
               unknown = what.rfind(kUnknown);
  if (colon != std::string::npos && outside != std::string::npos && colon < outside) {
    const size_t begin = colon + kValue.size();
    const std::string range = what.substr(outside + kOutside.size());
    return fmt::format("{}: {}; expected {} from {}", what.substr(0, colon),
                       what.substr(begin, outside - begin),
                       range.find('.') == std::string::npos ? "a whole number" : "a number", range);
  }
  if (unknown != std::string::npos && what.ends_with('}')) {
    std::string names;
    for (size_t i = unknown + kUnknown.size(); i + 1 < what.size(); ++i)
      names += what[i] == ',' ? ", " : std::string(1, what[i]);
    return fmt::format("{}; expected one of {}", what.substr(0, unknown), names);
  }
  return what;
}

}  // namespace

std::string option_name(const std::string& arg) {
  std::string name(name_of(arg));
  if (name.starts_with("--")) std::replace(name.begin() + 2, name.end(), '_', '-');
  return name;
}

std::vector<std::string> as_tessera(const CLI::App& app, std::vector<std::string> args) {
  std::vector<Item> items = items_of(app, args);
  refuse_foreign(app, items);
  model_first(items);
  merge_cache_types(items);
  args.resize(1);
  for (const Item& item : items) args.insert(args.end(), item.words.begin(), item.words.end());
  return args;
}

std::string why(const CLI::App& app, const CLI::ParseError& error) {
  // an option that is not there may be why another one lacks
  const std::vector<std::string> rest = app.remaining();
  for (const std::string& arg : rest)
    if (is_option(arg)) return unknown_option(app, arg);
  const std::string what = error.what();
  if (what == "A subcommand is required") return "a verb is required";
  if (dynamic_cast<const CLI::RequiredError*>(&error) != nullptr) return required(app, what);
  if (!rest.empty() && dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    return too_many(app, rest);
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    const std::string name = what.substr(0, what.find(':'));
    if (what.ends_with(" missing")) return name + " needs a value";
    if (what.find(" received ") != std::string::npos)
      return name + " is given " + what.substr(what.rfind(' ') + 1) + " times; expected once";
  }
  return of_value(app, what);
}

const CLI::App& parsed_verb(const CLI::App& app) {
  const CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().front();
  return *at;
}

}  // namespace tessera::cli
