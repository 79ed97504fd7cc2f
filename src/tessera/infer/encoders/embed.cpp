#include "tessera/infer/encoders/embed.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "tessera/convert/text_settings.h"
#include "tessera/base/error.h"
#include "tessera/text/tokenizer/text_pair.h"
#include "tessera/base/threads.h"
#include "tessera/infer/engine/sequence.h"

namespace tessera::infer {
namespace {

using convert::SentenceActivation;
using convert::SentenceLayer;

constexpr int64_t kTokensPerCall = 4096;
constexpr double kLeastLength = 1e-12;  // a vector of zeros stays a vector of zeros

/// The first tokens of a text: special tokens and prompt.
int64_t tokens_of_prompt(const text::Tokenizer& tokenizer, const EmbedOptions& options) {
  if (options.prompt.empty() || options.include_prompt) return 0;
  const auto ids = tokenizer.encode(options.prompt, {.parse_special = options.parse_special});
  const bool ends = !ids.empty() && tokenizer.is_special(ids.back());
  return static_cast<int64_t>(ids.size()) - (ends ? 1 : 0);
}

/// Ids of a text, truncated so that `around` special tokens fit; empty if there is no room for any.
struct TextIds {
  std::vector<int64_t> ids;
  bool cut = false;
};
TextIds ids_of(const text::Tokenizer& tokenizer,
               const std::string& text,
               bool parse_special,
               int64_t limit,
               int64_t around) {
  auto inner = tokenizer.encode(text, {.add_special = false, .parse_special = parse_special});
  const bool cut = limit > 0 && static_cast<int64_t>(inner.size()) + around > limit;
  if (cut)
    text::truncate(tokenizer, inner, static_cast<size_t>(std::max<int64_t>(0, limit - around)));
  const auto whole = tokenizer.surround(inner);
  return {{whole.begin(), whole.end()}, cut};
}

using Vector = std::vector<double>;

/// Hidden states of a text: rows [count, d], after `skipped` tokens that do not count.
struct Rows {
  const float* data;
  int64_t count, d, skipped;
};

/// One pooling, in double, so that the order of the sum has no effect.
void pool(const Rows& rows, Pooling pooling, double* v) {
  const auto read = [&](int64_t row, const auto& join) {
    for (int64_t c = 0; c < rows.d; ++c) join(v[c], rows.data[row * rows.d + c]);
  };
  const auto copy = [](double& to, float x) { to = x; };
  const auto add = [&](int64_t row, double weight) {
    read(row, [weight](double& to, float x) { to += weight * x; });
  };
  const auto n = static_cast<double>(rows.count);
  double total = 0;
  switch (pooling) {
    case Pooling::mean:
    case Pooling::mean_sqrt_len:
      for (int64_t t = 0; t < rows.count; ++t) add(t, 1);
      total = pooling == Pooling::mean ? n : std::sqrt(n);
      break;
    case Pooling::weighted_mean:
      for (int64_t t = 0; t < rows.count; ++t) {
        const auto weight = static_cast<double>(rows.skipped + t + 1);
        add(t, weight);
        total += weight;
      }
      break;
    case Pooling::cls:
      return read(0, copy);
    case Pooling::max:
      read(0, copy);
      for (int64_t t = 1; t < rows.count; ++t)
        read(t, [](double& to, float x) { to = x > to || std::isnan(x) ? x : to; });
      return;
    case Pooling::last:
      return read(rows.count - 1, copy);
  }
  for (int64_t c = 0; c < rows.d; ++c) v[c] /= total;
}

void normalize(Vector& v) {
  const double length =
      std::max(kLeastLength, std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0)));
  for (double& x : v) x /= length;
}

double activated(SentenceActivation activation, double x) {
  switch (activation) {
    case SentenceActivation::identity:
      return x;
    case SentenceActivation::tanh:
      return std::tanh(x);
    case SentenceActivation::relu:
      return x > 0 || std::isnan(x) ? x : 0;
    case SentenceActivation::gelu:
      return 0.5 * x * (1 + std::erf(x * std::numbers::sqrt2 / 2));
    case SentenceActivation::silu:
      return x / (1 + std::exp(-x));
    case SentenceActivation::sigmoid:
      return 1 / (1 + std::exp(-x));
  }
  return x;
}

/// W x for W [out, in].
Vector product(const std::vector<float>& weight, const Vector& x, int64_t out) {
  Vector y(static_cast<size_t>(out));
  for (size_t o = 0; o < y.size(); ++o)
    y[o] = std::inner_product(x.begin(), x.end(),
                              weight.begin() + static_cast<std::ptrdiff_t>(o * x.size()), 0.0);
  return y;
}

Vector dense(const SentenceLayer& layer, const Vector& x) {
  Vector y = product(layer.weight, x, layer.out);
  const Vector residual = layer.residual.empty() ? Vector() : product(layer.residual, x, layer.out);
  for (size_t o = 0; o < y.size(); ++o) {
    y[o] = activated(layer.activation, y[o] + (layer.bias.empty() ? 0 : layer.bias[o]));
    if (layer.adds_input) y[o] += x[o];
    if (!residual.empty()) y[o] += residual[o];
  }
  return y;
}

void layer_norm(const SentenceLayer& layer, Vector& x) {
  constexpr double kEpsilon = 1e-5;  // of torch.nn.LayerNorm
  const auto n = static_cast<double>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  double variance = 0;
  for (const double value : x) variance += (value - mean) * (value - mean) / n;
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = (x[i] - mean) / std::sqrt(variance + kEpsilon) * layer.weight[i] + layer.bias[i];
}

/// The vector of a text.
Vector vector_of(const Rows& rows, const EmbedOptions& options) {
  Vector v(options.poolings.size() * static_cast<size_t>(rows.d), 0);
  for (size_t i = 0; i < options.poolings.size(); ++i)
    pool(rows, options.poolings[i], v.data() + i * static_cast<size_t>(rows.d));
  for (const SentenceLayer& layer : options.layers) {
    if (layer.kind == SentenceLayer::Kind::dense) v = dense(layer, v);
    if (layer.kind == SentenceLayer::Kind::layer_norm) layer_norm(layer, v);
    if (layer.kind == SentenceLayer::Kind::normalize) normalize(v);
  }
  if (options.normalize) normalize(v);
  if (options.dimensions > 0 && options.dimensions < std::ssize(v)) {
    v.resize(static_cast<size_t>(options.dimensions));
    if (options.normalize && options.renormalize) normalize(v);
  }
  return v;
}

}  // namespace

EmbedOptions embed_options_of(const std::filesystem::path& model,
                              const std::vector<std::string>& adapters) {
  EmbedOptions options;
  static_cast<convert::SentenceModules&>(options) = convert::sentence_modules_of(model, adapters);
  return options;
}

int64_t embedding_width(const model::ModelSpec& spec, const EmbedOptions& options) {
  int64_t width = std::ssize(options.poolings) * spec.width_out();
  for (const SentenceLayer& layer : options.layers) {
    if (layer.in != 0 && layer.in != width)
      fail(ErrorKind::file, layer.where,
           "the module reads vectors of {} numbers; before it there are {}", layer.in, width);
    if (layer.out != 0) width = layer.out;
  }
  return options.dimensions > 0 ? std::min(width, options.dimensions) : width;
}

EmbedTokens embed_tokens(const LoadedModel& loaded,
                         const std::vector<std::string>& texts,
                         const EmbedOptions& options) {
  if (!loaded.tokenizer)
    fail(ErrorKind::usage, "embed",
         "this model has no tokenizer; expected tokenizer.json or "
         "vocab.txt in its folder");
  const int64_t longest = loaded.model.spec().longest_sequence();
  int64_t limit = options.max_tokens;
  if (longest > 0) limit = limit == 0 ? longest : std::min(limit, longest);
  EmbedTokens out;
  const text::Tokenizer tokenizer =
      options.lower_case ? text::with_lower_case(*loaded.tokenizer) : *loaded.tokenizer;
  out.skipped = tokens_of_prompt(tokenizer, options);
  const auto around = static_cast<int64_t>(tokenizer.surround({}).size());
  std::vector<TextIds> read(texts.size());
  parallel_in_turn(std::ssize(texts), 16, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i)
      read[i] = ids_of(tokenizer, options.prompt + texts[i], options.parse_special, limit, around);
  });
  const auto name = [&] {
    const size_t number = out.rows.size() + 1;
    return options.file.empty() ? fmt::format("text {}", number)
                                : fmt::format("{}: line {}", options.file, number);
  };
  for (TextIds& text : read) {
    if (text.cut && limit <= around)
      fail(ErrorKind::usage, "embed", "{} tokens leave no room for a text; expected more than {}",
           limit, around);
    if (text.ids.empty())
      fail(ErrorKind::input, "embed", "{} has no token; expected some text", name());
    out.cut += text.cut ? 1 : 0;
    if (size_of(text.ids) <= out.skipped)
      fail(ErrorKind::input, "embed",
           "{} has {} tokens, of which the first {} belong to the prompt and are not pooled "
           "(include_prompt); expected text after the prompt",
           name(), text.ids.size(), out.skipped);
    out.rows.push_back(std::move(text.ids));
  }
  return out;
}

Tensor embed_rows(const LoadedModel& loaded,
                  const std::vector<std::vector<int64_t>>& rows,
                  const EmbedOptions& options,
                  int64_t skipped) {
  const model::ModelSpec& spec = loaded.model.spec();
  if (spec.encoder)
    fail(ErrorKind::usage, "embed", "this model is an {}; expected an encoder or a decoder",
         model::name_of(spec.arch));
  const at::NoGradGuard no_gradients;
  const int64_t d = spec.width_out();
  const int64_t width = embedding_width(spec, options);
  const Tensor vectors_RD = at::empty({std::ssize(rows), width}, at::kFloat);
  for (size_t begin = 0; begin < rows.size();) {
    size_t end = begin;
    for (int64_t tokens = 0; end < rows.size() && tokens < kTokensPerCall; ++end)
      tokens += size_of(rows[end]);
    const nn::Batch batch = nn::Batch::of({rows.begin() + static_cast<std::ptrdiff_t>(begin),
                                           rows.begin() + static_cast<std::ptrdiff_t>(end)});
    model::ForwardOptions call;
    call.cancel = options.cancel;
    const Tensor hidden_ND = loaded.model.hidden(batch, call).to(at::kCPU, at::kFloat).contiguous();
    const auto* hidden = hidden_ND.const_data_ptr<float>();
    float* vectors = vectors_RD.data_ptr<float>() + static_cast<int64_t>(begin) * width;
    parallel_for(static_cast<int64_t>(end - begin), 16, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const nn::Segment& s = batch.segments[static_cast<size_t>(i)];
        const Vector v =
            vector_of({hidden + (s.begin + skipped) * d, s.length - skipped, d, skipped}, options);
        std::copy(v.begin(), v.end(), vectors + i * width);
      }
    });
    for (size_t i = begin; i < end; ++i, vectors += width)
      if (!std::all_of(vectors, vectors + width, [](float x) { return std::isfinite(x); }))
        fail(ErrorKind::file, "embed",
             "the vector of text {} is not finite; expected finite numbers: a weight of this model "
             "is none, or overflows",
             i + 1);
    begin = end;
  }
  return vectors_RD;
}

Embeddings embed(const LoadedModel& loaded,
                 const std::vector<std::string>& texts,
                 const EmbedOptions& options) {
  const EmbedTokens read = embed_tokens(loaded, texts, options);
  Embeddings out{.vectors_RD = embed_rows(loaded, read.rows, options, read.skipped),
                 .tokens = {},
                 .cut = read.cut};
  for (const auto& row : read.rows) out.tokens.push_back(size_of(row));
  return out;
}

}  // namespace tessera::infer
