#include <mutex>

#include "tessera/spec/settings.h"
#include "tessera/api/tessera.h"
#include "tessera/api/decoding.h"
#include "tessera/api/loaded_access.h"
#include "tessera/api/plugins.h"
#include "tessera/hub/find_model.h"
#include "tessera/infer/encoders/embed.h"
#include "tessera/infer/engine/conversation.h"
#include "tessera/infer/loading/quantize_on_load.h"
#include "tessera/model/placement.h"
#include "tessera/nn/batch.h"
#include "tessera/nn/head/head_config.h"
#include "tessera/ops/device_name.h"
#include "tessera/text/chat/chat_prompt.h"

namespace tessera {
namespace {

infer::LoadedModel open(const std::string& path, std::string_view text) {
  spec::Settings settings(text, "load");
  std::vector<std::string> found;
  for (const std::string& adapter : settings.texts("adapters"))
    found.push_back(hub::find_model(adapter).path);
  const std::string arithmetic =
      settings.one_of("arithmetic", {"default", "exact", "fast"}).value_or("default");
  infer::MatmulOptions products{arithmetic == "exact"  ? kernels::Arithmetic::float32
                                : arithmetic == "fast" ? kernels::Arithmetic::int8
                                                       : kernels::Arithmetic::int15};
  if (const auto blocks = settings.text("blocks")) products.blocks = dtype_named(*blocks);
  const at::Device device = ops::device_named(settings.text("device").value_or("cpu"));
  settings.done();
  infer::LoadedModel loaded = infer::load_model(path, {}, found, products);
  if (!device.is_cpu()) loaded.model = model::to_device(loaded.model, device);
  return loaded;
}

Matrix matrix_of(const Tensor& x_RC) {
  const Tensor held = x_RC.to(at::kCPU, at::kFloat).contiguous();
  const float* const data = held.const_data_ptr<float>();
  return {held.size(0), held.size(1), {data, data + held.numel()}};
}

}  // namespace

struct Model::State {
  infer::LoadedModel loaded;
  std::string path;
  std::mutex mutex;  // held during a call

  const text::Tokenizer& tokenizer(const char* where) const {
    if (!loaded.tokenizer)
      fail(ErrorKind::usage, where, "{} has no tokenizer; expected a model with one", path);
    return *loaded.tokenizer;
  }

  Completion generate(const std::vector<int64_t>& prompt,
                      infer::GenerateOptions& options,
                      const OnText& on_text) {
    CancelToken stopped;
    options.cancel = &stopped;
    const text::Tokenizer* const known = loaded.tokenizer ? &*loaded.tokenizer : nullptr;
    if (on_text) {
      tokenizer("generate");
      options.on_text = [&](size_t, std::string_view text) {
        if (!stopped.requested() && !on_text(text)) stopped.request();
      };
    }
    const std::lock_guard lock(mutex);
    infer::Generations result = infer::generate(loaded.model, known, {prompt}, options);
    infer::Generation& row = result.rows.at(0);
    if (row.error) std::rethrow_exception(row.error);
    if (!row.cut.empty() && row.finish_reason != "cancelled")
      fail(ErrorKind::input, "generate", "the answer was cut {}; expected more max_new_tokens",
           row.cut);
    return {std::move(row.text), std::move(row.token_ids), row.prompt_tokens,
            std::move(row.finish_reason)};
  }

  Tensor hidden(const nn::Batch& batch, const char* where) const {
    if (loaded.model.spec().encoder)
      fail(ErrorKind::usage, where,
           "an encoder-decoder has these for pairs of texts; expected a decoder or an encoder");
    return loaded.model.hidden(batch);
  }

  nn::Batch batch_of(const std::vector<int64_t>& ids, const char* where) const {
    for (const int64_t id : ids)
      if (id < 0 || id >= loaded.model.spec().vocab)
        fail(ErrorKind::input, where, "token {}; expected 0 to {}", id,
             loaded.model.spec().vocab - 1);
    return nn::Batch::of({ids});
  }
};

Model::Model(const std::string& path, std::string_view settings) {
  api::load_plugins_of_environment();
  const std::string found = hub::find_model(path).path;
  state_.reset(new State{open(found, settings), found, {}});
}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

const model::Model& LoadedAccess::model(const Model& of) {
  return of.state_->loaded.model;
}
std::mutex& LoadedAccess::mutex(const Model& of) {
  return of.state_->mutex;
}

std::vector<int64_t> Model::tokenize(std::string_view text,
                                     bool special,
                                     bool parse_special) const {
  const std::vector<int32_t> ids =
      state_->tokenizer("tokenize")
          .of_source()
          .encode(text, {.add_special = special, .parse_special = parse_special});
  return {ids.begin(), ids.end()};
}

std::string Model::detokenize(const std::vector<int64_t>& ids) const {
  for (const int64_t id : ids)
    if (id < 0 || id >= state_->loaded.model.spec().vocab)
      fail(ErrorKind::input, "detokenize", "token {}; expected 0 to {}", id,
           state_->loaded.model.spec().vocab - 1);
  const std::vector<int32_t> narrow(ids.begin(), ids.end());
  return state_->tokenizer("detokenize").decode(narrow);
}

Completion Model::generate(std::string_view prompt,
                           std::string_view settings,
                           const OnText& on_text) const {
  api::DecodingSettings asked =
      api::read_decoding_settings(settings, state_->loaded, infer::TextKind::continuation);
  return state_->generate(tokenize(prompt, asked.add_special, asked.parse_special), asked.options,
                          on_text);
}

Completion Model::generate(const std::vector<int64_t>& prompt,
                           std::string_view settings,
                           const OnText& on_text) const {
  api::DecodingSettings asked =
      api::read_decoding_settings(settings, state_->loaded, infer::TextKind::continuation);
  return state_->generate(prompt, asked.options, on_text);
}

Completion Model::chat(std::string_view messages,
                       std::string_view settings,
                       const OnText& on_text) const {
  api::DecodingSettings asked =
      api::read_decoding_settings(settings, state_->loaded, infer::TextKind::conversation);
  const text::Tokenizer& tokenizer = state_->tokenizer("chat");
  if (tokenizer.chat_template().empty())
    fail(ErrorKind::usage, "chat",
         "{} has no chat template and is probably a base model; expected generate()", state_->path);
  const text::ChatPrompt prompts(tokenizer, tokenizer.chat_template(), state_->path);
  const text::MarkedText prompt = prompts.render(
      {.messages = spec::parse_json(messages, "messages"), .tools = std::move(asked.tools)});
  const std::vector<int32_t> ids = prompts.encode(prompt);
  if (!asked.options.stop_ids.empty())
    for (const int64_t id : prompts.ends()) asked.options.stop_ids.push_back(id);
  return state_->generate({ids.begin(), ids.end()}, asked.options, on_text);
}

Matrix Model::logits(const std::vector<int64_t>& ids) const {
  const nn::Batch batch = state_->batch_of(ids, "logits");
  const model::Model& model = state_->loaded.model;
  if (!model.spec().head)
    fail(ErrorKind::usage, "logits", "the model has no head; expected hidden_states() or embed()");
  const bool of_documents = model.spec().head.as<nn::HeadConfig>().reads() == nn::HeadInput::pooled;
  const std::lock_guard lock(state_->mutex);
  const at::NoGradGuard no_gradients;
  const Tensor hidden = state_->hidden(batch, "logits");
  return matrix_of(model.logits(of_documents ? model.pooled(hidden, batch) : hidden));
}

Matrix Model::hidden_states(const std::vector<int64_t>& ids) const {
  const nn::Batch batch = state_->batch_of(ids, "hidden_states");
  const std::lock_guard lock(state_->mutex);
  const at::NoGradGuard no_gradients;
  return matrix_of(state_->hidden(batch, "hidden_states"));
}

Matrix Model::embed(const std::vector<std::string>& texts, std::string_view text) const {
  infer::EmbedOptions options = infer::embed_options_of(state_->path);
  spec::Settings settings(text, "embed");
  if (const auto pooling = settings.text("pooling"))
    options.poolings = {infer::pooling_named(*pooling)};
  const auto normalize = settings.flag("normalize");
  if (normalize) options.normalize = *normalize;
  const auto dimensions = settings.whole("dimensions", 1);
  if (dimensions) options.dimensions = *dimensions;
  options.renormalize = normalize.value_or(false) || dimensions.has_value();
  if (const auto prompt = settings.text("prompt")) options.prompt = *prompt;
  if (const auto most = settings.whole("max_tokens", 1)) options.max_tokens = *most;
  settings.done();
  const std::lock_guard lock(state_->mutex);
  const at::NoGradGuard no_gradients;
  return matrix_of(infer::embed(state_->loaded, texts, options).vectors_RD);
}

std::string Model::spec() const {
  return state_->loaded.source.spec_json.dump(2);
}

}  // namespace tessera
