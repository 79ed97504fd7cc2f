// Training gives the same bits for any number of threads: by experiment at sizes at which threads
// share the work of libtorch's operations too, and by looking at which operations it consists of.
#include "tessera/analysis/contract/checks.h"
#include "tessera/analysis/contract/order_watch.h"

namespace tessera::contract {
namespace {

/// One longer than the blocks of mixers, and two whose lengths are no multiple of anything;
/// together more numbers than libtorch sums in one thread (2^15).
Rows long_documents() {
  return {random_ids(401, 3), random_ids(37, 4), random_ids(163, 5)};
}

/// What a training step makes, but for the update of the weights.
struct Step {
  Tensor y;
  std::map<std::string, Tensor> losses, gradients;
};

Step training_step(const Rig& rig, const Rows& rows) {
  const nn::Batch batch = batch_of(rig, rows);
  const auto encoded = encode_sources(rig, batch);
  Step out;
  Tensor added;
  model::ForwardOptions options;
  options.encoded = encoded ? &*encoded : nullptr;
  options.training = true;
  options.key = RandomKey(5);
  options.add_loss = [&](const std::string& name, const Tensor& loss) {
    out.losses[name] = loss.detach();
    added = added.defined() ? added + loss : loss;
  };
  for (const auto& [name, value] : rig.values) value.mutable_grad() = Tensor();
  out.y = rig.model.hidden(batch, options);
  const model::ModelSpec& spec = rig.spec();
  if (spec.pooler) out.y = rig.model.pooled(out.y, batch);
  if (spec.head) out.y = rig.model.logits(out.y);
  const spec::ParamDecl decl{"gradient", out.y.sizes().vec(), spec::Init::normal(1)};
  out.y.backward(ops::initial_values(decl, RandomKey(11), out.y.scalar_type()), /*keep=*/true);
  if (added.defined() && added.requires_grad()) added.backward();
  out.y = out.y.detach();
  for (const auto& [name, value] : rig.values)
    if (value.grad().defined()) out.gradients[name] = value.grad().clone();
  return out;
}

void compare(const Step& got, const Step& want, int threads, Report& report) {
  report.expect(same_bits(got.y, want.y), "{} threads: other outputs", threads);
  for (const auto& [name, loss] : want.losses)
    report.expect(same_bits(got.losses.at(name), loss), "{} threads: another loss {}", threads,
                  name);
  for (const auto& [name, gradient] : want.gradients) {
    report.expect(same_bits(got.gradients.at(name), gradient),
                  "{} threads: another gradient of {}, by {:.3g}", threads, name,
                  difference(got.gradients.at(name), gradient));
    report.expect(at::isfinite(gradient).all().item<bool>(), "the gradient of {} is not finite",
                  name);
  }
}

/// The first of the case's wide specs that reads documents of this length.
std::optional<Rig> wide_rig(const Case& c, const Rows& rows, Report& report) {
  std::string refusals;
  for (const Json& json : wide_specs(c, static_cast<int64_t>(rows[0].size()))) try {
      Rig rig = make_rig(json, at::kFloat);
      const at::NoGradGuard no_gradients;
      whole(rig, {rows[0]});
      return rig;
    } catch (const Error& error) {
      refusals += fmt::format("; {}", error.what());
    }
  report.expect(false, "no spec of width {} reads {} tokens{}", kWide.width, rows[0].size(),
                refusals);
  return std::nullopt;
}

}  // namespace

void check_threads(const Case& c, Report& report) {
  const Rig small = make_rig(c.decoder, at::kFloat);
  {
    const Threads two(2);
    const Rows rows{random_ids(13, 1), random_ids(7, 2), random_ids(3, 3)};
    OrderWatch watch(23);
    training_step(small, rows);
    for (const std::string& operation : watch.found())
      report.expect(false, "its bits depend on the number of threads: {}", operation);
  }
  if (!c.chosen) return;
  const Rows rows = long_documents();
  const std::optional<Rig> rig = wide_rig(c, rows, report);
  if (!rig) return;
  std::optional<Step> one;
  std::optional<Tensor> inferred;
  for (const int n : {1, 2, 3}) {
    const Threads threads(n);
    const Step here = training_step(*rig, rows);
    if (!one) one = here;
    compare(here, *one, n, report);
    const at::NoGradGuard no_gradients;
    const Tensor y = whole(*rig, rows);
    if (!inferred) inferred = y;
    report.expect(same_bits(y, *inferred), "{} threads: other outputs without gradients", n);
  }
}

}  // namespace tessera::contract
