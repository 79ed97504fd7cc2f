#include "tessera/convert/generation_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/mapped_file.h"
#include "tessera/base/output_file.h"
#include "tessera/convert/foreign_config.h"
#include "tessera/format/file_source.h"

namespace tessera::convert {
namespace {

using spec::Json;

constexpr size_t kMaxBytes = size_t{64} << 20;
constexpr size_t kLongestKey = 64;  // in messages
constexpr size_t kMostIds = 65536;  // of a list
constexpr int64_t kMostTokens = int64_t{1} << 40;

// keys of older versions that no longer stand in GenerationConfig come last
constexpr GenerationKey kKeys[] = {
    {"max_length", KeyUse::read},
    {"max_new_tokens", KeyUse::read},
    {"min_length", KeyUse::read},
    {"min_new_tokens", KeyUse::read},
    {"early_stopping", KeyUse::read},
    {"max_time", KeyUse::unsupported},
    {"stop_strings", KeyUse::read},
    {"do_sample", KeyUse::read},
    {"num_beams", KeyUse::read},
    {"use_mtp", KeyUse::without_effect},
    {"use_cache", KeyUse::without_effect},
    {"cache_implementation", KeyUse::without_effect},
    {"cache_config", KeyUse::without_effect},
    {"max_cache_len", KeyUse::without_effect},
    {"temperature", KeyUse::read},
    {"top_k", KeyUse::read},
    {"top_p", KeyUse::read},
    {"min_p", KeyUse::read},
    {"top_h", KeyUse::read},
    {"typical_p", KeyUse::read},
    {"epsilon_cutoff", KeyUse::read},
    {"eta_cutoff", KeyUse::read},
    {"repetition_penalty", KeyUse::read},
    {"encoder_repetition_penalty", KeyUse::read},
    {"length_penalty", KeyUse::read},
    {"no_repeat_ngram_size", KeyUse::read},
    {"bad_words_ids", KeyUse::read},
    {"renormalize_logits", KeyUse::read},
    {"forced_bos_token_id", KeyUse::read},
    {"forced_eos_token_id", KeyUse::read},
    {"remove_invalid_values", KeyUse::unsupported},
    {"exponential_decay_length_penalty", KeyUse::read},
    {"suppress_tokens", KeyUse::read},
    {"begin_suppress_tokens", KeyUse::read},
    {"sequence_bias", KeyUse::read},
    {"token_healing", KeyUse::unsupported},
    {"guidance_scale", KeyUse::unsupported},
    {"watermarking_config", KeyUse::unsupported},
    {"num_return_sequences", KeyUse::unsupported},
    {"output_attentions", KeyUse::without_effect},
    {"output_hidden_states", KeyUse::without_effect},
    {"output_scores", KeyUse::without_effect},
    {"output_logits", KeyUse::without_effect},
    {"return_dict_in_generate", KeyUse::without_effect},
    {"pad_token_id", KeyUse::without_effect},
    {"bos_token_id", KeyUse::without_effect},
    {"eos_token_id", KeyUse::read},
    {"encoder_no_repeat_ngram_size", KeyUse::read},
    {"decoder_start_token_id", KeyUse::read},
    {"is_assistant", KeyUse::without_effect},
    {"num_assistant_tokens", KeyUse::without_effect},
    {"num_assistant_tokens_schedule", KeyUse::without_effect},
    {"assistant_confidence_threshold", KeyUse::without_effect},
    {"prompt_lookup_num_tokens", KeyUse::without_effect},
    {"max_matching_ngram_size", KeyUse::without_effect},
    {"assistant_early_exit", KeyUse::without_effect},
    {"assistant_lookbehind", KeyUse::without_effect},
    {"target_lookbehind", KeyUse::without_effect},
    {"assistant_ensemble_weight", KeyUse::unsupported},
    {"speculation_type", KeyUse::without_effect},
    {"compile_config", KeyUse::without_effect},
    {"disable_compile", KeyUse::without_effect},
    {"continuous_batching_config", KeyUse::without_effect},
    {"low_memory", KeyUse::without_effect},
    {"penalty_alpha", KeyUse::unsupported},
    {"dola_layers", KeyUse::unsupported},
    {"diversity_penalty", KeyUse::unsupported},
    {"num_beam_groups", KeyUse::unsupported},
    {"constraints", KeyUse::unsupported},
    {"force_words_ids", KeyUse::unsupported},
    {"prefill_chunk_size", KeyUse::without_effect},
    {"_from_model_config", KeyUse::without_effect},
    {"transformers_version", KeyUse::without_effect},
    {"forced_decoder_ids", KeyUse::unsupported},
};

/// The keys of one file, typed and checked.
class Keys {
 public:
  Keys(const Json& config, int64_t vocab, std::string where)
      : config_(config), vocab_(vocab), where_(std::move(where)) {}

  /// Null is a key that is not there.
  const Json* find(const char* key) const {
    const auto found = config_.find(key);
    return found == config_.end() || found->is_null() ? nullptr : &*found;
  }
  std::optional<bool> flag(const char* key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) refuse(key, *value, "true or false");
    return value->get<bool>();
  }
  std::optional<double> number(const char* key, double least, double most) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !(value->get<double>() >= least && value->get<double>() <= most))
      refuse(key, *value, fmt::format("a number from {} to {}", least, most));
    return value->get<double>();
  }
  std::optional<int64_t> whole(const char* key, int64_t least, int64_t most) const {
    const auto value = number(key, static_cast<double>(least), static_cast<double>(most));
    if (!value) return std::nullopt;
    if (*value != std::floor(*value)) refuse(key, *find(key), "a whole number");
    return static_cast<int64_t>(*value);
  }
  /// null, an id, or a list of one.
  std::optional<int64_t> id(const char* key) const {
    const Json* found = find(key);
    if (found == nullptr) return std::nullopt;
    const Json& value = found->is_array() && found->size() == 1 ? found->front() : *found;
    if (!value.is_number_integer() || !known(value))
      refuse(key, *found, fmt::format("one id from 0 to {}", vocab_ - 1));
    return value.get<int64_t>();
  }
  /// An id or a list of them, each once, without those that the vocabulary lacks.
  std::vector<int64_t> ids(const char* key, size_t most) const {
    std::vector<int64_t> out;
    const Json* found = find(key);
    if (found == nullptr) return out;
    const Json all = found->is_array() ? *found : Json::array({*found});
    for (const Json& value : all) {
      if (!value.is_number_integer() || all.size() > most)
        refuse(key, *found, fmt::format("an id, or a list of at most {}", most));
      if (known(value) && std::find(out.begin(), out.end(), value.get<int64_t>()) == out.end())
        out.push_back(value.get<int64_t>());
    }
    return out;
  }
  /// One of several sequences; an empty one has no effect.
  std::vector<int64_t> sequence(const char* key, const Json& value) const {
    constexpr size_t kMostLength = 1024;
    if (!value.is_array() || value.size() > kMostLength)
      refuse(key, value, fmt::format("lists of at most {} ids", kMostLength));
    std::vector<int64_t> out;
    for (const Json& id : value) {
      if (!id.is_number_integer() || !known(id))
        refuse(key, value, fmt::format("lists of ids from 0 to {}", vocab_ - 1));
      out.push_back(id.get<int64_t>());
    }
    return out;
  }
  const Json& list(const char* key) const {
    static const Json kNone = Json::array();
    const Json* value = find(key);
    if (value == nullptr) return kNone;
    if (!value->is_array() || value->size() > kMostIds)
      refuse(key, *value, fmt::format("a list of at most {}", kMostIds));
    return *value;
  }
  [[noreturn]] void refuse(const char* key, const Json& value, const std::string& expected) const {
    fail(ErrorKind::file, where_, "\"{}\" is {}; expected {}", key, shown(value), expected);
  }
  static std::string shown(const Json& value) {
    return value.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 100);
  }

 private:
  bool known(const Json& id) const {
    if (id.is_number_unsigned()) return id.get<uint64_t>() < static_cast<uint64_t>(vocab_);
    return id.get<int64_t>() >= 0 && id.get<int64_t>() < vocab_;
  }
  const Json& config_;
  int64_t vocab_;
  std::string where_;
};

void read_sampling(GenerationConfig& out, const Keys& keys, std::span<const NumberKey> numbers) {
  out.do_sample = keys.flag("do_sample");
  for (const NumberKey& key : numbers) {
    const Json* const found = keys.find(key.key);
    // as transformers, which does not look at what a greedy text does not use
    if (key.draws && !out.do_sample.value_or(false) && found != nullptr && found->is_number() &&
        !(found->get<double>() >= key.least && found->get<double>() <= key.most)) {
      out.unsupported.push_back(fmt::format("{} = {} (not from {} to {})", key.key,
                                            Keys::shown(*found), key.least, key.most));
      continue;
    }
    if (const auto value = keys.number(key.key, key.least, key.most)) {
      if (key.whole && *value != std::floor(*value)) keys.refuse(key.key, *found, "a whole number");
      out.sampling[key.field] = std::max(key.valid_least, *value);
      out.sets_draws = out.sets_draws || key.draws;
    }
  }
  const char* const kDecay = "exponential_decay_length_penalty";
  if (const Json* decay = keys.find(kDecay)) {
    const bool pair = decay->is_array() && decay->size() == 2 && (*decay)[0].is_number() &&
                      (*decay)[1].is_number();
    const double start = pair ? (*decay)[0].get<double>() : -1,
                 factor = pair ? (*decay)[1].get<double>() : -1;
    constexpr double kMostFactor = 1e38;  // of float32
    if (!(start >= 0 && start <= 1e9 && start == std::floor(start) && factor > 0 &&
          factor <= kMostFactor))
      keys.refuse(kDecay, *decay, "[tokens, factor above 0]");
    out.sampling["exponential_decay_start"] = start;
    out.sampling["exponential_decay_factor"] = factor;
  }
}

void read_lengths(GenerationConfig& out, const Keys& keys) {
  out.max_new_tokens = keys.whole("max_new_tokens", 0, kMostTokens);
  out.max_length = keys.whole("max_length", 0, kMostTokens);
  out.min_new_tokens = keys.whole("min_new_tokens", 0, kMostTokens);
  out.min_length = keys.whole("min_length", 0, kMostTokens);
  const Json* stops = keys.find("stop_strings");
  if (stops == nullptr) return;
  constexpr size_t kMostStops = 64, kMostBytes = 1024;
  const Json all = stops->is_array() ? *stops : Json::array({*stops});
  for (const Json& stop : all) {
    if (!stop.is_string() || all.size() > kMostStops || stop.get<std::string>().empty() ||
        stop.get<std::string>().size() > kMostBytes)
      keys.refuse(
          "stop_strings", *stops,
          fmt::format("a text of 1 to {} bytes, or a list of at most {}", kMostBytes, kMostStops));
    out.stop_strings.push_back(stop.get<std::string>());
  }
}

void read_biases(GenerationConfig& out, const Keys& keys) {
  out.suppressed = keys.ids("suppress_tokens", kMostIds);
  out.suppressed_at_begin = keys.ids("begin_suppress_tokens", kMostIds);
  // of a sequence that comes twice the last one counts
  std::map<std::vector<int64_t>, double> biases;
  for (const Json& pair : keys.list("sequence_bias")) {
    if (!pair.is_array() || pair.size() != 2 || !pair[1].is_number() ||
        std::isnan(pair[1].get<double>()))
      keys.refuse("sequence_bias", pair, "[[ids], number]");
    constexpr double kMost = 1e30;  // infinity among logits would leave no probabilities
    const std::vector<int64_t> sequence = keys.sequence("sequence_bias", pair[0]);
    if (!sequence.empty()) biases[sequence] = std::min(pair[1].get<double>(), kMost);
  }
  out.sequence_bias.assign(biases.begin(), biases.end());
  for (const Json& word : keys.list("bad_words_ids")) {
    const std::vector<int64_t> sequence = keys.sequence("bad_words_ids", word);
    // a text may end all the same
    const bool end = sequence.size() == 1 && std::find(out.ends.begin(), out.ends.end(),
                                                       sequence.front()) != out.ends.end();
    if (!sequence.empty() && !end)
      out.sequence_bias.emplace_back(sequence, -std::numeric_limits<double>::infinity());
  }
}

void read_search(GenerationConfig& out, const Keys& keys) {
  out.beams = keys.whole("num_beams", 1, 1 << 16);
  out.length_penalty = keys.number("length_penalty", -1e6, 1e6);
  out.renormalize = keys.flag("renormalize_logits").value_or(false);
  const Json* early = keys.find("early_stopping");
  if (early == nullptr) return;
  if (!early->is_boolean() && *early != "never")
    keys.refuse("early_stopping", *early, "true, false or \"never\"");
  out.early_stopping = !early->is_boolean() ? EarlyStopping::never
                       : early->get<bool>() ? EarlyStopping::always
                                            : EarlyStopping::heuristic;
}

/// Values that switch off what is not supported.
bool is_neutral(const std::string& key, const Json& value) {
  if (value.is_null() || value == false || value == 0) return true;
  if (value.is_array() || value.is_object()) return value.empty();
  return value == 1 &&
         (key == "guidance_scale" || key == "num_return_sequences" || key == "num_beam_groups");
}

/// Keys of makers' files that transformers' GenerationConfig lacks: of Whisper's timestamps and
/// languages, of the chat methods of models with code of their own, and of saved files.
constexpr const char* kOfOthers[] = {"_commit_hash",
                                     "_name_or_path",
                                     "alignment_heads",
                                     "assistant_token_id",
                                     "attn_implementation",
                                     "chat_format",
                                     "force_bos_token_to_be_generated",
                                     "is_multilingual",
                                     "lang_to_id",
                                     "language",
                                     "max_initial_timestamp_index",
                                     "max_window_size",
                                     "median_filter_width",
                                     "no_timestamps_token_id",
                                     "prev_sot_token_id",
                                     "return_timestamps",
                                     "suppress_blank",
                                     "task",
                                     "task_to_id",
                                     "torch_dtype",
                                     "dtype",
                                     "trust_remote_code",
                                     "use_model_defaults",
                                     "user_token_id"};

/// Keys that are not read, a misspelt one among them, with the nearest name.
void add_unknown(GenerationConfig& out,
                 const std::vector<std::string>& keys,
                 const std::vector<std::string>& known) {
  constexpr size_t kShown = 8;
  for (size_t i = 0; i < std::min(keys.size(), kShown); ++i) {
    const std::string near = spec::nearest_name(keys[i], known);
    out.unsupported.push_back(
        fmt::format("{} (unknown key{})", format::printable(keys[i], kLongestKey),
                    near.empty() ? "" : fmt::format("; did you mean \"{}\"?", near)));
  }
  if (keys.size() > kShown)
    out.unsupported.push_back(
        fmt::format("unknown keys that are not listed: {}", keys.size() - kShown));
}

}  // namespace

bool GenerationConfig::samples() const {
  return do_sample.has_value() || sets_draws;
}

GenerationConfig read_generation_config(const std::filesystem::path& folder,
                                        int64_t vocab,
                                        std::span<const NumberKey> numbers) {
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = folder / name;
    if (!std::filesystem::is_regular_file(path)) continue;
    const std::string where = path.string();
    const Json config = parse_hf_config(read_text_file(path, kMaxBytes), where);
    if (!config.is_object())
      fail(ErrorKind::file, where, "{}; expected an object", spec::kind_of(config));
    const Keys keys(config, vocab, where);
    GenerationConfig out;
    out.source = name;
    out.forced_begin = keys.id("forced_bos_token_id");
    out.forced_end = keys.id("forced_eos_token_id");
    constexpr size_t kMostEnds = 1024;
    out.ends = keys.ids("eos_token_id", kMostEnds);
    out.start = keys.id("decoder_start_token_id");
    read_sampling(out, keys, numbers);
    read_lengths(out, keys);
    read_biases(out, keys);
    read_search(out, keys);
    for (const GenerationKey& key : kKeys)
      if (const Json* value = keys.find(key.name);
          key.use == KeyUse::unsupported && value != nullptr && !is_neutral(key.name, *value))
        out.unsupported.push_back(fmt::format("{} = {}", key.name, Keys::shown(*value)));
    // config.json has the keys of the model too
    if (name == std::string_view("generation_config.json")) {
      std::vector<std::string> known, unknown;
      for (const GenerationKey& key : kKeys) known.emplace_back(key.name);
      for (const auto& [key, value] : config.items())
        if (!value.is_null() && std::find(known.begin(), known.end(), key) == known.end() &&
            std::find(std::begin(kOfOthers), std::end(kOfOthers), key) == std::end(kOfOthers))
          unknown.push_back(key);
      add_unknown(out, unknown, known);
    }
    // how older files say it
    const auto older = config.find("force_bos_token_to_be_generated");
    if (!out.forced_begin && older != config.end() && *older == true)
      out.forced_begin = keys.id("bos_token_id");
    return out;
  }
  return {};
}

GenerationConfig read_generation_config(const format::GgufFile& file,
                                        std::span<const NumberKey> numbers) {
  const std::string prefix = "general.sampling.";
  GenerationConfig out;
  for (const NumberKey& name : numbers) {
    const std::string key = prefix + name.key;
    if (file.metadata.find(key) == nullptr) continue;
    out.source = prefix + "*";
    const double number = file.metadata.get_f64(key);
    if (!(number >= name.least && number <= name.most))
      fail(ErrorKind::file, "gguf", "{} is {}; expected a number from {} to {}", key, number,
           name.least, name.most);
    if (std::string_view(name.key) == "mirostat" && number == 1) {
      out.unsupported.push_back(key + " = 1");
      continue;
    }
    out.sampling[name.field] = std::max(name.valid_least, number);
    out.sets_draws = out.sets_draws || name.draws;
  }
  if (file.metadata.find(prefix + "sequence") != nullptr) {
    out.source = prefix + "*";
    const std::string names(file.metadata.get_string(prefix + "sequence"));
    for (size_t begin = 0; begin <= names.size();) {
      const size_t end = std::min(names.find(';', begin), names.size());
      if (end > begin) out.samplers.push_back(names.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  std::vector<std::string> known = {"sequence"}, unknown;
  for (const NumberKey& name : numbers) known.emplace_back(name.key);
  for (const format::GgufEntry& entry : file.metadata.entries())
    if (entry.key.starts_with(prefix) &&
        std::find(known.begin(), known.end(), entry.key.substr(prefix.size())) == known.end())
      unknown.push_back(entry.key.substr(prefix.size()));
  if (!unknown.empty()) out.source = prefix + "*";
  add_unknown(out, unknown, known);
  const auto temperature = out.sampling.find("temperature");
  if (temperature != out.sampling.end()) out.do_sample = temperature->second > 0;
  return out;
}

void copy_generation_config(const std::filesystem::path& from, const std::filesystem::path& to) {
  constexpr const char* kName = "generation_config.json";
  if (std::filesystem::is_regular_file(from / kName) && !std::filesystem::exists(to / kName))
    write_file_atomically(to / kName, read_text_file(from / kName));
}

std::span<const GenerationKey> generation_keys() {
  return kKeys;
}

}  // namespace tessera::convert
