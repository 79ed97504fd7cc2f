#include <cmath>

#include "tessera/analysis/contract/checks.h"
#include "tessera/nn/head/head_config.h"

namespace tessera::contract {
namespace {

constexpr double kDouble = 1e-10, kFloat = 1e-5, kFloatGradient = 1e-4, kHalfSquare = 1e-4;

std::vector<Json> both(const Case& c) {
  std::vector<Json> out{c.decoder};
  if (!c.encoder.is_null()) out.push_back(c.encoder);
  return out;
}

/// Equal rows, ragged rows and a single token.
std::vector<Rows> inputs() {
  return {{random_ids(13, 1), random_ids(13, 2)},
          {random_ids(20, 3), random_ids(1, 4), random_ids(7, 5)},
          {random_ids(1, 6)}};
}

/// The plain form, whatever the type: kernels only run where no gradient is recorded.
Tensor plain(const Rig& rig, const Rows& rows) {
  const at::AutoGradMode gradients(true);
  return whole(rig, rows).detach();
}

Tensor fast(const Rig& rig, const Rows& rows) {
  const at::NoGradGuard no_gradients;
  return whole(rig, rows);
}

void check_differences(const Json& json, Report& report) {
  const Rig rig = make_rig(json, at::kDouble);
  const Rows rows{random_ids(9, 1), random_ids(4, 2)};
  const auto grads = gradients(rig, [&] { return whole(rig, rows); });
  const auto value = [&] {
    const at::NoGradGuard no_gradients;  // double never takes the kernels
    return scalar_of(whole(rig, rows)).item<double>();
  };
  // along a random direction per parameter: (f(w + h u) - f(w - h u)) / 2h = <gradient, u>
  constexpr double kStep = 1e-5;
  for (const auto& [name, grad] : grads) {
    if (!grad.defined()) continue;  // check_parameters names it
    for (int64_t direction = 0; direction < 2; ++direction) {
      const Tensor u =
          direction == 0
              ? grad / grad.norm().clamp_min(1e-30)
              : at::cos(at::arange(grad.numel(), at::kDouble) * 1.7).reshape(grad.sizes());
      const double want = (grad * u).sum().item<double>(),
                   scale = (grad * u).abs().sum().item<double>();
      const at::NoGradGuard no_gradients;
      const Tensor w = rig.values.at(name);
      w.add_(u, kStep);
      const double up = value();
      w.sub_(u, 2 * kStep);
      const double down = value();
      w.add_(u, kStep);
      const double got = (up - down) / (2 * kStep);
      report.expect(std::abs(got - want) <= 1e-6 * scale + 1e-7,
                    "{}: gradient {} along a direction; central differences give {}", name, want,
                    got);
    }
  }
}

/// How much the rig's gradients change when its weights are rounded to float32 once more: nobody
/// who computes with such numbers can come much nearer. By name.
std::map<std::string, double> conditioning(const Rig& rig,
                                           const Rows& rows,
                                           const std::map<std::string, Tensor>& gradients_of) {
  std::map<std::string, double> out;
  for (const double turn : {0.7, 1.1, 1.9}) {
    std::map<std::string, Tensor> before;
    {
      const at::NoGradGuard no_gradients;
      for (const auto& [name, w] : rig.values) {
        before[name] = w.clone();
        w.mul_(
            1 +
            0x1p-24 *
                at::sin(at::arange(w.numel(), w.options()) * turn + 1).sign().reshape(w.sizes()));
      }
    }
    const auto moved = gradients(rig, [&] { return whole(rig, rows); });
    const at::NoGradGuard no_gradients;
    for (const auto& [name, w] : rig.values) w.copy_(before.at(name));
    for (const auto& [name, grad] : gradients_of)
      if (grad.defined()) out[name] = std::max(out[name], difference(moved.at(name), grad));
  }
  return out;
}

void check_float_gradients(const Json& json, Report& report) {
  const Rig reference = make_rig(json, at::kDouble), rig = make_rig(json, at::kFloat);
  for (const Rows& rows : inputs()) {
    const auto want = gradients(reference, [&] { return whole(reference, rows); });
    const auto got = gradients(rig, [&] { return whole(rig, rows); });
    double largest = 0;
    for (const auto& [name, grad] : want)
      if (grad.defined()) largest = std::max(largest, grad.abs().max().item<double>());
    std::map<std::string, double> rounding;
    for (const auto& [name, grad] : want) {
      // what is zero but for rounding has no relative error, and a sum in which most is taken back
      // keeps at best one rounding of what is summed
      const double size = grad.defined() ? grad.abs().max().item<double>() : 0;
      if (size < 1e-6 * largest || size == 0) continue;
      const double error = difference(got.at(name), grad);
      if (error <= std::max(kFloatGradient, 0x1p-24 * largest / size)) continue;
      if (rounding.empty()) rounding = conditioning(reference, rows, want);
      report.expect(error <= 2 * rounding[name],
                    "{}: float32 gradient differs from double by {:.3g}, another rounding of the "
                    "weights by {:.3g}",
                    name, error, rounding[name]);
    }
  }
}

}  // namespace

void check_types(const Case& c, Report& report) {
  for (const Json& json : both(c)) {
    const Rig f64 = make_rig(json, at::kDouble), f32 = make_rig(json, at::kFloat);
    // 16-bit rounding adds up over layers: the bound is for one around the part
    const Json one = shallow(json);
    const Rig bf16 = make_rig(one, at::kBFloat16, at::kBFloat16),
              rounded = make_rig(one, at::kDouble, at::kBFloat16),
              mapped = make_stored_rig(one, at::kBFloat16);
    const spec::AnyPart& head = f64.spec().head;
    const int64_t width =
        head ? head.as<nn::HeadConfig>().outputs(f64.spec().scope_out()) : f64.spec().width_out();
    std::vector<Tensor> all_want16, all_got16, all_fast16;
    for (const Rows& rows : inputs()) {
      const int64_t n = nn::Batch::of(rows).n_tokens();
      const Tensor reference = plain(f64, rows);
      report.expect(
          reference.sizes() == at::IntArrayRef{n, width} && reference.scalar_type() == at::kDouble,
          "double: wrong shape or type");
      const Tensor got32 = plain(f32, rows);
      report.expect(got32.scalar_type() == at::kFloat, "float32 weights give {}",
                    at::toString(got32.scalar_type()));
      report.expect(difference(got32, reference) <= kFloat,
                    "float32 plain form differs from double by {:.3g}",
                    difference(got32, reference));
      // bf16 storage, trained and at inference, against the same rounded numbers in double
      const Tensor want16 = plain(rounded, rows), got16 = plain(bf16, rows),
                   fast16 = fast(bf16, rows);
      report.expect(got16.scalar_type() == at::kBFloat16, "bf16 weights give {}",
                    at::toString(got16.scalar_type()));
      all_want16.push_back(want16);
      all_got16.push_back(got16);
      all_fast16.push_back(fast16);
      // weights mapped as bf16, float32 activations
      const Tensor from_file = fast(mapped, rows);
      report.expect(
          from_file.scalar_type() == at::kFloat && difference(from_file, want16) <= kFloat,
          "mapped bf16 weights differ from double by {:.3g}", difference(from_file, want16));
    }
    // a mean square needs many numbers: over all inputs together
    const Tensor want16 = at::cat(all_want16);
    for (const auto& [name, got] : {std::pair{"bf16 plain form", at::cat(all_got16)},
                                    std::pair{"bf16 inference", at::cat(all_fast16)}}) {
      const double error = normalised_mean_square(got, want16);
      report.expect(error <= kHalfSquare, "{}: normalised mean square error {:.3g}", name, error);
    }
  }
}

void check_unwritten(const Case& c, Report& report) {
  for (const Json& json : both(c)) {
    const Rig rig = make_rig(json, at::kFloat);
    for (const Rows& rows : inputs()) {
      const Tensor want = fast(rig, rows), want_plain = plain(rig, rows);
      const UnwrittenIsNan poison;
      report.expect(same_bits(fast(rig, rows), want),
                    "the inference path reads memory that it did not write");
      report.expect(same_bits(plain(rig, rows), want_plain),
                    "the plain form reads memory that it did not write");
      for (const auto& [name, grad] : gradients(rig, [&] { return whole(rig, rows); }))
        report.expect(!grad.defined() || at::isfinite(grad).all().item<bool>(),
                      "the gradient of {} reads memory that it did not write", name);
      if (!rig.spec().causal() || !no_state(c).empty()) continue;
      const at::NoGradGuard no_gradients;
      model::State state(rig.spec(), 1);
      report.expect(same_bits(feed_split(rig, state, 0, rows[0],
                                         random_split(static_cast<int64_t>(rows[0].size()), 9)),
                              want.narrow(0, 0, static_cast<int64_t>(rows[0].size()))),
                    "a state holds memory that was not written");
    }
  }
}

void check_fast_path(const Case& c, Report& report) {
  for (const Json& json : both(c)) {
    const Rig reference = make_rig(json, at::kDouble), rig = make_rig(json, at::kFloat);
    for (const Rows& rows : inputs()) {
      const double error = difference(fast(rig, rows), plain(reference, rows));
      report.expect(error <= kFloat, "kernels differ from the plain form in double by {:.3g}",
                    error);
    }
  }
}

void check_gradients(const Case& c, Report& report) {
  for (const Json& json : both(c)) {
    check_differences(json, report);
    check_float_gradients(json, report);
  }
}

void check_documents(const Case& c, Report& report) {
  for (const Json& json : both(c)) {
    const Rig f64 = make_rig(json, at::kDouble), f32 = make_rig(json, at::kFloat);
    for (const Rows& rows : inputs()) {
      const Tensor exact = plain(f64, rows), trained = plain(f32, rows), inferred = fast(f32, rows);
      int64_t begin = 0;
      for (const Ids& row : rows) {
        const auto n = static_cast<int64_t>(row.size());
        report.expect(difference(exact.narrow(0, begin, n), plain(f64, {row})) <= kDouble,
                      "double: a document depends on its neighbours");
        report.expect(difference(trained.narrow(0, begin, n), plain(f32, {row})) <= kFloat,
                      "float32: a document depends on its neighbours");
        report.expect(same_bits(inferred.narrow(0, begin, n), fast(f32, {row})),
                      "kernels: a document's bits depend on its neighbours");
        begin += n;
      }
    }
  }
}

// --- causality ----------------------------------------------------------------------------------

namespace {

/// Hidden states of whole documents as training computes them.
Tensor in_training(const Rig& rig, const Rows& rows) {
  const nn::Batch batch = batch_of(rig, rows);
  const auto encoded = encode_sources(rig, batch);
  model::ForwardOptions options;
  options.encoded = encoded ? &*encoded : nullptr;
  options.training = true;
  return rig.model.hidden(batch, options);
}

/// Whether tokens are sorted by expert: a row then stands where the others' choices put it, and
/// torch operations, which compute with gradients and in double, round the last rows in other ways.
bool sorts_tokens(const model::ModelSpec& spec) {
  bool sorts = false;
  model::for_each_part(
      spec, [&](const spec::AnyPart& part) { sorts |= part.mechanism->slot == Slot::router; });
  return sorts;
}

}  // namespace

spec::Causality shown_causality(const Json& json) {
  const Rig f64 = make_rig(json, at::kDouble), f32 = make_rig(json, at::kFloat);
  constexpr int64_t kTokens = 14;
  spec::Causality worst = spec::Causality::bitwise;
  const auto at_least = [&](spec::Causality shown) { worst = std::max(worst, shown); };
  const auto same_plain = [sorts = sorts_tokens(f64.spec())](const Tensor& a, const Tensor& b,
                                                             double rounding) {
    return sorts ? difference(a, b) <= rounding : same_bits(a, b);
  };
  for (const int64_t seen : {1, 4, 9, 13}) {
    Ids ids = random_ids(kTokens, 21), other = ids;
    for (int64_t i = seen; i < kTokens; ++i)
      other[static_cast<size_t>(i)] =
          (other[static_cast<size_t>(i)] + 1 + i % (kVocab - 1)) % kVocab;
    const Ids cut(ids.begin(), ids.begin() + seen);
    const auto past = [&](const Tensor& y) { return y.narrow(0, 0, seen); };
    const Tensor before = past(plain(f64, {ids}));
    const bool length_matters = difference(before, plain(f64, {cut})) > kDouble;
    const bool bits = same_plain(before, past(plain(f64, {other})), 1e-12) &&
                      same_plain(past(plain(f32, {ids})), past(plain(f32, {other})), kFloat) &&
                      same_bits(past(fast(f32, {ids})), past(fast(f32, {other}))) &&
                      same_bits(past(fast(f32, {ids})), fast(f32, {cut}));
    if (difference(past(in_training(f64, {ids})), past(in_training(f64, {other}))) > 1e-12 &&
        difference(before, past(plain(f64, {other}))) <= 1e-12)
      at_least(spec::Causality::selection);  // inference chooses without the future
    if (bits && !length_matters) continue;
    // does it matter which tokens follow? One other future may select the same by accident
    bool tokens_matter = difference(past(plain(f64, {other})), before) > 1e-12;
    for (int64_t shift = 1; length_matters && !tokens_matter && shift <= 5; ++shift) {
      Ids another = ids;
      for (int64_t i = seen; i < kTokens; ++i)
        another[static_cast<size_t>(i)] =
            (another[static_cast<size_t>(i)] + shift + i % 3) % kVocab;
      tokens_matter = difference(past(plain(f64, {another})), before) > 1e-12;
    }
    if (!tokens_matter) {
      // the length of the document alone changes the past: no class of causality allows that
      at_least(length_matters ? spec::Causality::none : spec::Causality::rounding);
      continue;
    }
    // the past changed: by values of the future (a gradient reaches them), or by what they select
    Ids apart = ids;  // tokens of the future that the past does not hold
    for (int64_t i = 0; i < kTokens; ++i)
      apart[static_cast<size_t>(i)] = i < seen ? i % 5 : 5 + i % 6;
    const auto grads = gradients(f64, [&] { return past(whole(f64, {apart})); });
    const auto vectors = grads.find("embed.token.weight");  // there are none of features
    const double reached =
        vectors == grads.end() ? 1 : vectors->second.narrow(0, 5, 6).abs().max().item<double>();
    at_least(reached > 0 ? spec::Causality::none : spec::Causality::selection);
  }
  return worst;
}

void check_causality(const Case& c, Report& report) {
  if (c.encoder_only) return;  // only a decoder promises anything about its past
  const spec::Causality declared =
      c.mechanism == nullptr ? spec::Causality::bitwise : c.mechanism->info.causality;
  const spec::Causality shown = shown_causality(c.decoder);
  report.expect(shown <= declared, "shows causality {}, but declares {}", name_of(shown),
                name_of(declared));
}

}  // namespace tessera::contract
