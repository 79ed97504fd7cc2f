// Rows of attention: against libtorch's scaled_dot_product_attention, its terms against its plain
// form, patterns against the keys that they keep, and decoding against the bytes of the cache.
//   attention_rows [ROW ...] [--repeats N] [--json] [--list]
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <optional>

#include "machine.h"
#include "rows.h"
#include "tessera/base/allocator.h"
#include "tessera/base/cpu.h"
#include "tessera/kernels/attention/attention.h"
#include "tessera/nn/pattern/big_bird.h"
#include "tessera/nn/pattern/chunked.h"
#include "tessera/nn/pattern/dilated.h"
#include "tessera/nn/pattern/fixed.h"
#include "tessera/nn/pattern/longformer.h"
#include "tessera/nn/pattern/prefix.h"
#include "tessera/nn/pattern/random.h"
#include "tessera/nn/pattern/sink_window.h"
#include "tessera/nn/pattern/strided.h"
#include "tessera/ops/attention/flash_attention.h"

namespace tessera::bench {
namespace {

using at::Tensor;

Tensor leaf(at::IntArrayRef sizes, at::ScalarType type) {
  return at::randn(sizes).to(type).requires_grad_(true);
}

struct Qkv {
  Tensor q, k, v;
  Qkv(int64_t b, int64_t t, int64_t h, int64_t g, int64_t d, at::ScalarType type = at::kFloat)
      : q(leaf({b, t, h, d}, type)), k(leaf({b, t, g, d}, type)), v(leaf({b, t, g, d}, type)) {}
  std::vector<Tensor> all() const { return {q, k, v}; }
};

ops::ScoreOptions scaled(int64_t d) {
  ops::ScoreOptions options;
  options.scale = 1 / std::sqrt(static_cast<double>(d));
  return options;
}

/// Forward, and backward from a gradient of ones.
Program training(const std::function<Tensor()>& attend, const std::vector<Tensor>& inputs) {
  return [=, gradient = Tensor()]() mutable {
    const Tensor out = attend();
    if (!gradient.defined()) gradient = at::ones_like(out);
    torch::autograd::grad({out}, inputs, {gradient});
  };
}

std::function<Tensor()> attend(const Qkv& x, const ops::ScoreOptions& options) {
  return [=] { return ops::flash_attention(x.q, x.k, x.v, 0, 0, options); };
}

/// One row of documents, one after another.
Tensor attend_documents(const Qkv& x,
                        const std::vector<int64_t>& lengths,
                        const ops::ScoreOptions& options) {
  return ops::flash_documents(x.q.squeeze(0), x.k.squeeze(0), x.v.squeeze(0), lengths, lengths,
                              options);
}

/// libtorch's.
std::function<Tensor()> attend_peer(const Qkv& x, const ops::ScoreOptions& options) {
  return [=] {
    return at::scaled_dot_product_attention(x.q.transpose(1, 2), x.k.transpose(1, 2),
                                            x.v.transpose(1, 2), {}, 0.0, true, options.scale)
        .transpose(1, 2);
  };
}

// --- against libtorch ----------------------------------------------------------------------------

void sdpa_rows(Report& report) {
  for (const int64_t d : {64, 128})
    for (const int64_t t : {1024, 2048, 4096}) {
      const std::string name = fmt::format("sdpa/d{}/t{}", d, t);
      report.group(name, [&] {
        const int64_t heads = 8 * 64 / d;
        const Qkv x(1, t, heads, heads, d);
        const ops::ScoreOptions options = scaled(d);
        const auto ours = attend(x, options), theirs = attend_peer(x, options);
        const Tensor out = ours(), their_out = theirs(), gradient = at::ones_like(out);
        const double difference = (out - their_out).abs().max().item<double>();
        if (difference > 1e-4) {
          fmt::print(stderr, "{}: results differ by {}\n", name, difference);
          std::exit(1);
        }
        // gradients again and again from one forward
        const auto backward = [&](const Tensor& y) {
          return [&x, &gradient, y] { torch::autograd::grad({y}, x.all(), {gradient}, true); };
        };
        const auto s = report.seconds(
            {[&] { ours(); }, [&] { theirs(); }, backward(out), backward(their_out)});
        const double flops = 2.0 * static_cast<double>(heads * t * t * d);
        const auto row = [&](const char* pass, double our_s, double their_s, double work) {
          report.add(
              {name + pass, their_s / our_s, "x", Aim::at_least, 1,
               fmt::format("libtorch {} ({:.0f} GFLOP/s), ours {} ({:.0f})", milliseconds(their_s),
                           work / their_s / 1e9, milliseconds(our_s), work / our_s / 1e9)});
        };
        row("/forward", s[0], s[1], flops);
        row("/backward", s[2], s[3], 2.5 * flops);
      });
    }
}

// --- terms ---------------------------------------------------------------------------------------

/// Forward and backward per visible score, against plain causal attention.
void term_rows(Report& report) {
  constexpr int64_t kT = 4096, kH = 8, kD = 64;
  const Qkv x(1, kT, kH, kH, kD);
  const double all = 0.5 * kT * (kT + 1);
  const Program plain = training(attend(x, scaled(kD)), x.all());
  const auto compare = [&](const std::string& name, Aim aim, double bound, const Program& whole,
                           double of_whole, const Program& term, double scores) {
    report.group("terms/" + name, [&] {
      const auto s = report.seconds({whole, term});
      report.add({"terms/" + name, s[1] / scores / (s[0] / of_whole), "x", aim, bound,
                  fmt::format("ns a score and head: plain {:.3f}, here {:.3f}",
                              s[0] / of_whole / kH * 1e9, s[1] / scores / kH * 1e9)});
    });
  };
  const auto row = [&](const std::string& name, double bound, double scores, const Program& term) {
    compare(name, Aim::at_most, bound, plain, all, term, scores);
  };
  {
    constexpr int64_t kWindow = 1024;
    ops::ScoreOptions o = scaled(kD);
    o.window = kWindow;
    row("window", 1.1, 0.5 * kWindow * (kWindow + 1) + (kT - kWindow) * kWindow,
        training(attend(x, o), x.all()));
  }
  {
    ops::ScoreOptions o = scaled(kD);
    o.term.bias_HR = at::exp2(-at::arange(1, kH + 1, at::kFloat)).unsqueeze(1) *
                     at::arange(1 - kT, 1, at::kFloat);
    o.term.zero = kT - 1;
    row("alibi", 1.1, all, training(attend(x, o), x.all()));
  }
  {
    // what every token costs, whatever it sees, weighs more the shorter its document is: four times
    // as much here as in the whole
    const auto scores = [](const std::vector<int64_t>& lengths) {
      double sum = 0;
      for (const int64_t t : lengths) sum += 0.5 * static_cast<double>(t * (t + 1));
      return sum;
    };
    const std::vector<int64_t> four(4, kT / 4), two(2, kT / 2), ragged{1500, 700, 1300, 596};
    const auto packed = [&](const std::vector<int64_t>& lengths) {
      return training([=] { return attend_documents(x, lengths, scaled(kD)); }, x.all());
    };
    const auto beside_one_text = [&](const std::string& name, const std::vector<int64_t>& lengths) {
      compare(name, Aim::none, 0, plain, all, packed(lengths), scores(lengths));
    };
    beside_one_text("documents", four);
    row("documents/2k", 1.1, scores(two), packed(two));
    beside_one_text("ragged", ragged);
    // what documents themselves cost: against the same scores without them, in rows of a batch
    const Qkv batch(4, kT / 4, kH, kH, kD);
    const Program rows = training(attend(batch, scaled(kD)), batch.all());
    compare("documents/batch", Aim::at_most, 1.1, rows, scores(four), packed(four), scores(four));
    compare("ragged/batch", Aim::at_most, 1.1, rows, scores(four), packed(ragged), scores(ragged));
    // and what they cost libtorch by its own measure
    compare("documents/libtorch", Aim::none, 0, training(attend_peer(x, scaled(kD)), x.all()), all,
            training(attend_peer(batch, scaled(kD)), batch.all()), scores(four));
  }
  {
    const Qkv grouped(1, kT, kH, kH / 4, kD);
    row("gqa", 1.1, all, training(attend(grouped, scaled(kD)), grouped.all()));
  }
  {
    const Qkv half(1, kT, kH, kH, kD, at::kBFloat16);
    row("bf16", 1.1, all, training(attend(half, scaled(kD)), half.all()));
  }
  {
    ops::ScoreOptions o = scaled(kD);
    o.dropout = {.p = 0.1, .key = RandomKey(1)};
    compare("dropout", Aim::none, 0, plain, all, training(attend(x, o), x.all()), all);
  }
  {
    ops::ScoreOptions o = scaled(kD);
    o.softcap = 30;
    row("softcap", 1.3, all, training(attend(x, o), x.all()));
  }
}

// --- patterns ------------------------------------------------------------------------------------

constexpr int64_t kBlock = 96;  // keys, and rows, of what is counted as kept

/// Pairs of a block of queries and one of keys in which some query sees some key, of one head.
double blocks_kept(const kernels::Visibility& visible, int64_t heads, int64_t t) {
  const int64_t asked = visible.same_for_heads() ? 1 : heads, n = (t + kBlock - 1) / kBlock;
  std::vector<int8_t> counts(static_cast<size_t>(t));
  double kept = 0;
  for (int64_t h = 0; h < asked; ++h)
    for (int64_t row = 0; row < n; ++row) {
      std::vector<char> seen(static_cast<size_t>(n));
      for (int64_t i = row * kBlock; i < std::min(t, (row + 1) * kBlock); ++i) {
        visible.counts(h, {i, i + 1}, {0, i + 1}, counts.data(), 0);
        for (int64_t j = 0; j <= i; ++j)
          if (counts[static_cast<size_t>(j)] != 0) seen[static_cast<size_t>(j / kBlock)] = 1;
      }
      kept += static_cast<double>(std::count(seen.begin(), seen.end(), 1));
    }
  return kept / static_cast<double>(asked);
}

/// Forward and backward from 1k to 16k tokens: time for each block of keys kept, and peak memory.
template <class Pattern>
void pattern_row(Report& report, const std::string& name, const Pattern& pattern) {
  constexpr int64_t kH = 2, kD = 64;
  report.group("patterns/" + name, [&] {
    std::vector<double> lengths, kept, per_block, bytes;
    std::vector<Program> runs;
    std::string figures, sizes;
    for (const int64_t t : {1024, 2048, 4096, 8192, 16384}) {
      const Qkv x(1, t, kH, kH, kD);
      ops::ScoreOptions options = scaled(kD);
      options.visibility = std::make_shared<nn::PatternVisibility>(
          pattern, nn::PatternSite{.layer = 0, .n_heads = kH, .length = t});
      runs.push_back(training(attend(x, options), x.all()));
      kept.push_back(blocks_kept(*options.visibility, kH, t) * kH);
      bytes.push_back(static_cast<double>(peak_bytes(runs.back())));
      lengths.push_back(static_cast<double>(t));
      sizes += fmt::format("{}{:.0f}", sizes.empty() ? "" : " ", bytes.back() / 1048576);
    }
    const std::vector<double> seconds = report.seconds(runs);
    for (size_t i = 0; i < runs.size(); ++i) {
      per_block.push_back(seconds[i] / kept[i]);
      figures += fmt::format("{}{:.0f}", figures.empty() ? "" : " ", per_block.back() * 1e6);
    }
    // blocks far from the diagonal may be cheaper, for fewer of their keys are seen: only a rise of
    // the time is a failure
    double rise = 1;
    for (size_t i = 0; i < per_block.size(); ++i)
      for (size_t j = i + 1; j < per_block.size(); ++j)
        rise = std::max(rise, per_block[j] / per_block[i]);
    report.add({"patterns/" + name + "/time", rise, "x", Aim::at_most, 1.2,
                fmt::format("us a block of {0} x {0} kept at 1k, 2k .. 16k tokens: {1}", kBlock,
                            figures)});
    report.add({"patterns/" + name + "/memory", exponent(lengths, bytes), "power", Aim::at_most,
                1.1, fmt::format("highest at 1k, 2k .. 16k tokens: {} MiB", sizes)});
  });
}

template <class Pattern, class Set>
Pattern made(const Set& set) {
  Pattern pattern;
  set(pattern);
  return pattern;
}

void pattern_rows(Report& report) {
  using namespace nn;
  pattern_row(report, "sink_window",
              made<SinkWindowPatternConfig>([](auto& p) { p.first = 4, p.width = 512; }));
  pattern_row(report, "chunked", made<ChunkedPatternConfig>([](auto& p) { p.size = 512; }));
  pattern_row(report, "longformer", made<LongformerPatternConfig>([](auto& p) {
                p.width = 512, p.global_tokens = {0, 1};
              }));
  pattern_row(report, "big_bird",
              made<BigBirdPatternConfig>([](auto& p) { p.block = 64, p.random = 3; }));
  pattern_row(report, "strided", made<StridedPatternConfig>([](auto& p) { p.stride = 128; }));
  pattern_row(report, "fixed", made<FixedPatternConfig>([](auto& p) { p.stride = 128; }));
  pattern_row(report, "random",
              made<RandomPatternConfig>([](auto& p) { p.block = 128, p.blocks = 3; }));
  pattern_row(report, "dilated", made<DilatedPatternConfig>([](auto& p) {
                p.segments = {256, 512}, p.dilations = {1, 2};
              }));
  pattern_row(report, "prefix", made<PrefixPatternConfig>([](auto& p) { p.length = 256; }));
}

// --- decoding ------------------------------------------------------------------------------------

/// One query against `depth` cached keys.
class Decoding {
 public:
  Decoding(int64_t depth, int64_t h, int64_t g, int64_t k, int64_t v, bool latent)
      : cache_(at::randn({depth, g, latent ? k : k + v})),
        q_(at::randn({h, k})),
        out_(at::empty({h, v})) {
    kernels::Attention& a = attention_;
    a.T = 1, a.H = h, a.G = g, a.K = k, a.V = v;
    a.q = q_.const_data_ptr<float>(), a.q_token_stride = h * k, a.q_head_stride = k;
    a.out = out_.data_ptr<float>(), a.out_token_stride = h * v, a.out_head_stride = v;
    a.first_position = depth - 1;
    const float* cache = cache_.const_data_ptr<float>();
    // a latent's first values are its values; else keys and values lie in halves of the memory
    constexpr int64_t kFloat = sizeof(float);
    keys_.k = cache, keys_.v = latent ? cache : cache + depth * g * k;
    keys_.k_token_stride = g * k * kFloat, keys_.k_head_stride = k * kFloat;
    keys_.v_token_stride = g * (latent ? k : v) * kFloat;
    keys_.v_head_stride = (latent ? k : v) * kFloat;
    keys_.count = depth;
    a.kv = {&keys_, 1};
    a.scale = 0.1f;
  }
  Program run() const {
    return [this] { kernels::attend(attention_); };
  }
  double bytes() const { return 4.0 * static_cast<double>(cache_.numel()); }

  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

 private:
  Tensor cache_, q_, out_;
  kernels::KeySpan keys_;
  kernels::Attention attention_;
};

std::string bandwidth(const Decoding& d, double seconds) {
  return fmt::format("{} for {:.0f} MB ({:.1f} GB/s)", milliseconds(seconds), d.bytes() / 1e6,
                     d.bytes() / seconds / 1e9);
}

void decode_rows(Report& report) {
  // 268 MB of keys and values against 67 MB: both are larger than the last cache level
  for (const int64_t depth : {8192, 16384}) {
    const std::string name = fmt::format("decode/gqa/{}", depth);
    report.group(name, [&] {
      const int64_t heads = 32 * 8192 / depth;
      const Decoding full(depth, heads, heads, 128, 128, false),
          grouped(depth, heads, heads / 4, 128, 128, false);
      const auto s = report.seconds({full.run(), grouped.run()});
      report.add({name, s[0] / s[1] / (full.bytes() / grouped.bytes()), "x", Aim::at_least, 0.8,
                  fmt::format("a KV head per head {}; per four {}", bandwidth(full, s[0]),
                              bandwidth(grouped, s[1]))});
    });
  }
  report.group("decode/mla", [&] {
    // four heads leave the memory as the limit, sixteen the arithmetic; read once, the latents of a
    // deep cache cost sixteen heads no more each than those of a shallow one, which cache holds
    constexpr int64_t kDeep = 32768, kShallow = 2048;
    const Decoding few(kDeep, 4, 1, 576, 512, true), shared(kDeep, 4, 1, 288, 288, false),
        deep(kDeep, 16, 1, 576, 512, true), shallow(kShallow, 16, 1, 576, 512, true);
    const auto s = report.seconds({few.run(), shared.run(), deep.run(), shallow.run()});
    report.add({"decode/mla/bytes", s[1] / s[0], "x", Aim::at_least, 0.8,
                fmt::format("four heads, latents {}; keys and values of as many bytes {}",
                            bandwidth(few, s[0]), bandwidth(shared, s[1]))});
    report.add({"decode/mla/once", s[2] / kDeep / (s[3] / kShallow), "x", Aim::at_most, 1.25,
                fmt::format("sixteen heads, ns a key: {} deep {:.0f}, {} deep {:.0f}", kDeep,
                            s[2] / kDeep * 1e9, kShallow, s[3] / kShallow * 1e9)});
  });
  report.group("decode/bandwidth", [&] {
    const Decoding full(8192, 32, 32, 128, 128, false);
    const double limit = read_rate(0.5), s = report.seconds({full.run()})[0];
    report.add({"decode/bandwidth", full.bytes() / s / std::max(limit, read_rate(0.5)), "x",
                Aim::none, 0,
                fmt::format("{}; reading alone {:.1f} GB/s", bandwidth(full, s), limit / 1e9)});
  });
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera::bench;
  at::manual_seed(1);
  return run(argc, argv, "attention", {sdpa_rows, term_rows, pattern_rows, decode_rows});
}
