#include "tessera/analysis/mixer_bench.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "tessera/analysis/cost_cases.h"
#include "tessera/base/allocator.h"
#include "tessera/nn/parts.h"
#include "tessera/ops/block_cache.h"
#include "tessera/ops/random.h"
#include "tessera/ops/tensor_memory.h"

namespace tessera::analysis {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

/// The same numbers on every run.
Tensor drawn(const char* name, int64_t rows, int64_t columns) {
  return ops::initial_values({name, {rows, columns}, spec::Init::normal(1)}, RandomKey(1),
                             at::kFloat);
}

nn::Batch one_document(int64_t length, int64_t start = 0) {
  nn::Batch batch;
  batch.segments = {{0, 0, length, start}};
  batch.ids_N = at::zeros({length}, at::kLong);
  batch.number();
  return batch;
}

/// Documents of three and five quarters of `document` tokens by turns, `length` in all.
nn::Batch documents(int64_t length, int64_t document) {
  nn::Batch batch;
  for (int64_t begin = 0; begin < length;) {
    const auto row = static_cast<int64_t>(batch.segments.size());
    const int64_t tokens = std::max<int64_t>(1, document * (row % 2 == 0 ? 3 : 5) / 4);
    batch.segments.push_back({row, begin, std::min(tokens, length - begin), 0});
    begin += batch.segments.back().length;
  }
  batch.ids_N = at::zeros({length}, at::kLong);
  batch.number();
  return batch;
}
int64_t longest_document(int64_t length, int64_t document) {
  return document > 0 ? std::min(length, std::max<int64_t>(2, document * 5 / 4)) : length;
}

/// A layer with initial weights, and a document of `length` tokens, or documents of `document`.
class Layer {
 public:
  Layer(CostLayer what, int64_t length, int64_t document = 0)
      : what_(std::move(what)), document_(document) {
    spec::ParamList mixer("mixer"), position("position");
    what_.mixer.config->params(mixer, what_.scope.at("mixer"));
    if (what_.position) what_.position.config->params(position, what_.position_scope());
    for (const spec::ParamList* list : {&mixer, &position})
      for (const spec::ParamDecl& decl : list->all())
        weights_[decl.name] = std::make_shared<ops::Weight>(ops::Weight::dense(
            decl.name, ops::initial_values(decl, RandomKey(1), at::kFloat).requires_grad_(true)));
    const nn::WeightSource source = [this](const std::string& name) -> nn::WeightPtr {
      const auto found = weights_.find(name);
      return found == weights_.end() ? nullptr : found->second;
    };
    mixer_ = nn::build_mixer(what_.mixer, {source, "mixer", what_.scope.at("mixer")});
    if (what_.position)
      position_ = nn::build_position(what_.position, {source, "position", what_.position_scope()});
    x_TD_ = drawn("x", length, what_.scope.d_model);
    gradient_TD_ = drawn("gradient", length, what_.scope.d_model);
    encoded_ = source_of(length);
    batch_ = batch_of(length);
  }
  Layer(const Layer&) = delete;  // parts look weights up through `this` while they are built

  const CostLayer& what() const { return what_; }

  /// The whole document once, with gradients where the pass is backward.
  void run(Pass pass) {
    nn::Context context = context_of(batch_, encoded_);
    if (pass == Pass::forward) {
      const at::NoGradGuard no_gradients;
      mixer_->forward(embedded(x_TD_, context), context, nullptr);
      return;
    }
    context.training = true;
    const Tensor x_TD = x_TD_.detach().requires_grad_(true);
    mixer_->forward(embedded(x_TD, context), context, nullptr).backward(gradient_TD_);
  }
  void drop_gradients() {
    for (const auto& [name, weight] : weights_) weight->dense_tensor().mutable_grad().reset();
  }

  /// What one document leaves in the two parts.
  struct Rows {
    nn::RowState mixer, position;
  };
  std::vector<spec::StateDecl> state_decls() const {
    std::vector<spec::StateDecl> all = mixer_decls();
    for (const spec::StateDecl& decl : position_decls()) all.push_back(decl);
    return all;
  }
  /// The document's first `tokens` into an empty state, in calls of kPrefill tokens.
  Rows prefilled(int64_t tokens) const {
    const auto empty = [](const std::vector<spec::StateDecl>& decls) {
      return nn::RowState(decls, /*max_pending=*/0, at::TensorOptions().dtype(at::kFloat));
    };
    Rows rows{empty(mixer_decls()), empty(position_decls())};
    const nn::Encoded source = source_of(tokens);
    for (int64_t done = 0; done < tokens;) {
      const int64_t n = std::min<int64_t>(kPrefill, tokens - done);
      call(rows, done, n, done == 0 ? source : nn::Encoded());
      done += n;
    }
    return rows;
  }
  /// One more token.
  void step(Rows& rows) const { call(rows, rows.mixer.length(), 1, nn::Encoded()); }

 private:
  static constexpr int64_t kPrefill = 1024;

  std::vector<spec::StateDecl> mixer_decls() const {
    return what_.mixer.config->state(what_.scope.at("mixer"));
  }
  std::vector<spec::StateDecl> position_decls() const {
    if (!what_.position) return {};
    return what_.position.config->state(what_.position_scope());
  }
  void call(Rows& rows, int64_t start, int64_t n, const nn::Encoded& source) const {
    const nn::Batch batch = with_ids_before(one_document(n, start));
    nn::Context context = context_of(batch, source);
    const at::NoGradGuard no_gradients;
    const nn::StateRows at_position{&rows.position}, at_mixer{&rows.mixer};
    const Tensor x_TD = embedded(x_TD_.narrow(0, start, n), context, &at_position);
    rows.position.end_call(x_TD, {.length = n});
    nn::run_mixer(*mixer_, x_TD, context, &at_mixer);
  }
  nn::Batch batch_of(int64_t tokens) const {
    return with_ids_before(document_ > 0 ? documents(tokens, document_) : one_document(tokens));
  }
  /// With as many ids before each token as the mixer reads.
  nn::Batch with_ids_before(nn::Batch batch) const {
    if (const int64_t n = what_.mixer.config->ids_before(); n > 0)
      batch.before_NM = at::zeros({batch.n_tokens(), n}, at::kLong);
    return batch;
  }
  nn::Encoded source_of(int64_t tokens) const {
    return {batch_of(tokens), x_TD_.narrow(0, 0, tokens)};
  }
  nn::Context context_of(const nn::Batch& batch, const nn::Encoded& source) const {
    nn::Context context;
    context.batch = &batch;
    context.causal = what_.scope.causal;
    if (source.x_SD.defined()) context.encoded = &source;
    return context;
  }
  Tensor embedded(const Tensor& x_TD,
                  nn::Context& context,
                  const nn::StateRows* rows = nullptr) const {
    return position_ ? position_->embed(x_TD, context, rows) : x_TD;
  }

  CostLayer what_;
  int64_t document_;
  std::map<std::string, nn::WeightPtr> weights_;
  std::unique_ptr<nn::Mixer> mixer_;
  std::unique_ptr<nn::Position> position_;
  Tensor x_TD_, gradient_TD_;
  nn::Encoded encoded_;
  nn::Batch batch_;
};

/// One mechanism at all lengths.
class Bench {
 public:
  Bench(Cost& cost, const MixerBenchOptions& options) : cost_(cost), options_(options) {}

  void measure() {
    if (options_.forward) measure_pass(Pass::forward);
    if (options_.backward) measure_pass(Pass::backward);
    layers_.clear();
    if (options_.forward && options_.step && options_.document == 0) measure_step();
  }

  void measure_again() {
    for (Curve& curve : cost_.curves) {
      if (holds(time_check(cost_.claim.time, curve, options_.fit_from))) continue;
      for (const Point& p : curve.points) {
        say(fmt::format("{}, {} tokens", name_of(curve.pass), p.length));
        layer(p.length).run(curve.pass);  // warms the caches
        layer(p.length).drop_gradients();
      }
      improve(curve);
    }
    layers_.clear();
    if (cost_.step && !holds(step_check(*cost_.step)))
      improve(*cost_.step, step_layer(*cost_.step));
  }

 private:
  void say(const std::string& what) const {
    if (options_.cancel != nullptr) options_.cancel->check("bench");
    if (options_.progress) options_.progress(cost_.title() + " " + what);
  }

  Layer& layer(int64_t length) {
    std::unique_ptr<Layer>& layer = layers_[length];
    if (!layer)
      layer = std::make_unique<Layer>(
          cost_layer(*cost_.mechanism, options_.width, longest_document(length, options_.document)),
          length, options_.document);
    return *layer;
  }
  Layer step_layer(const Step& step) const {
    const int64_t length = step.deep + kWarmSteps + kSteps;
    return Layer(cost_layer(*cost_.mechanism, options_.width, length), length);
  }

  static bool holds(const std::optional<Check>& check) { return !check || check->holds(); }

  void measure_pass(Pass pass) {
    Curve curve{pass, {}, ""};
    for (const int64_t length : options_.lengths) {
      curve.left_out = beyond_limits(curve, length);
      if (!curve.left_out.empty()) break;
      say(fmt::format("{}, {} tokens", name_of(pass), length));
      curve.points.push_back(first_call(layer(length), pass, length));
    }
    curve = rounds(curve, /*first_call_counts=*/true);
    improve(curve);
    cost_.curves.push_back(std::move(curve));
  }

  /// Why this length is not measured, "" when it is.
  std::string beyond_limits(const Curve& curve, int64_t length) const {
    if (curve.points.empty()) return "";
    const Point& last = curve.points.back();
    const auto next = [&](Growth claim, double value) {
      return value * spec::grown(claim, static_cast<double>(length)) /
             spec::grown(claim, static_cast<double>(last.length));
    };
    const double seconds = next(cost_.claim.time, last.seconds);
    if (seconds > options_.limit)
      return fmt::format(
          "{} tokens and more would take about {:.1f} s a call ({:.2f} s at {}); the limit is {:g} "
          "s",
          length, seconds, last.seconds, last.length, options_.limit);
    const double bytes = next(cost_.claim.memory, static_cast<double>(last.bytes));
    if (bytes > static_cast<double>(options_.memory_limit))
      return fmt::format("{} tokens and more would hold about {:.1f} GB; the limit is {:.1f} GB",
                         length, bytes / (1 << 30),
                         static_cast<double>(options_.memory_limit) / (1 << 30));
    return "";
  }

  /// The peak beyond what is held before, and a time to go by.
  static Point first_call(Layer& layer, Pass pass, int64_t length) {
    next_scratch_generation();
    memory_meter().restart();
    const int64_t before = memory_meter().held();
    const auto start = Clock::now();
    layer.run(pass);
    double seconds = seconds_since(start);
    const int64_t bytes = memory_meter().peak() - before;
    layer.drop_gradients();
    if (seconds < kLongSeconds) {  // mostly what libraries do once
      const auto again = Clock::now();
      layer.run(pass);
      seconds = seconds_since(again);
      layer.drop_gradients();
    }
    return {length, seconds, bytes};
  }

  /// What else the machine does can only add time, sometimes for longer than all rounds last: where
  /// the claim does not hold, more rounds may lower what the first ones gave.
  void improve(Curve& curve) {
    for (int series = 0; series < kMoreSeries; ++series) {
      if (holds(time_check(cost_.claim.time, curve, options_.fit_from))) return;
      pool(curve, rounds(curve, /*first_call_counts=*/false));
    }
  }
  void improve(Step& step, const Layer& layer) {
    for (int series = 0; series < kMoreSeries && !holds(step_check(step)); ++series)
      pool(step, step_medians(step, layer));
  }

  /// The curve with the medians of all lengths, timed in turn, so that a slow moment of the machine
  /// meets all of them.
  Curve rounds(const Curve& curve, bool first_call_counts) {
    std::vector<std::vector<double>> samples(curve.points.size());
    for (int repeat = 0; repeat < options_.repeats; ++repeat)
      for (size_t i = 0; i < curve.points.size(); ++i) {
        const Point& point = curve.points[i];
        if (first_call_counts && repeat == 0 && point.seconds >= kLongSeconds) {
          samples[i].push_back(point.seconds);
          continue;
        }
        say(fmt::format("{}, {} tokens, {} of {}", name_of(curve.pass), point.length, repeat + 1,
                        options_.repeats));
        // short calls several times
        const int calls = static_cast<int>(std::clamp(kLeastSeconds / point.seconds, 1.0, 16.0));
        double seconds = 0;
        for (int call = 0; call < calls; ++call) {
          const auto start = Clock::now();
          layer(point.length).run(curve.pass);
          seconds += seconds_since(start);
          layer(point.length).drop_gradients();
        }
        samples[i].push_back(seconds / calls);
      }
    Curve out = curve;
    for (size_t i = 0; i < samples.size(); ++i) out.points[i].seconds = median(samples[i]);
    return out;
  }

  /// After few and many tokens in turn.
  void measure_step() {
    const std::vector<Point>& points = cost_.curve(Pass::forward)->points;
    const auto shallow = std::find_if(points.begin(), points.end(), [this](const Point& p) {
      return p.length >= options_.fit_from;
    });
    if (shallow == points.end() || shallow->length == points.back().length) return;
    Step step{.shallow = shallow->length, .deep = points.back().length};
    const Layer layer = step_layer(step);
    if (!layer.what().has_state()) return;
    const auto decls = layer.state_decls();
    step.constant_state = spec::state_bytes(decls, step.shallow, step.shallow) ==
                          spec::state_bytes(decls, step.deep, step.deep);
    step = step_medians(step, layer);
    improve(step, layer);
    cost_.step = step;
  }

  Step step_medians(Step step, const Layer& layer) const {
    say(fmt::format("decode step after {} and {} tokens", step.shallow, step.deep));
    Layer::Rows after_few = layer.prefilled(step.shallow);
    Layer::Rows after_many = layer.prefilled(step.deep);
    std::vector<double> few, many;
    for (int64_t i = 0; i < kWarmSteps + kSteps; ++i)
      for (const bool first : {true, false}) {
        const bool deep = first == (i % 2 == 0);  // neither always follows the other
        const auto start = Clock::now();
        layer.step(deep ? after_many : after_few);
        if (i >= kWarmSteps) (deep ? many : few).push_back(seconds_since(start));
      }
    step.shallow_seconds = median(few);
    step.deep_seconds = median(many);
    return step;
  }

  // shorter calls are timed several at once; in longer ones what is done once does not show, so
  // that the first call counts as one of the repeats
  static constexpr double kLeastSeconds = 0.02, kLongSeconds = 0.2;
  static constexpr int64_t kWarmSteps = 8, kSteps = 101;
  static constexpr int kMoreSeries = 2;  // that may mend the first

  Cost& cost_;
  const MixerBenchOptions& options_;
  std::map<int64_t, std::unique_ptr<Layer>> layers_;
};

/// As in training: malloc would map the large buffers of long documents again in every call.
void prepare_memory() {
  ops::use_block_cache();
  ops::count_tensor_memory();
}

}  // namespace

Cost measure_cost(const spec::Mechanism& mechanism, const MixerBenchOptions& options) {
  require(!options.lengths.empty() && options.lengths.front() >= 2 &&
              std::is_sorted(options.lengths.begin(), options.lengths.end()),
          "bench", "lengths must be ascending, from 2 tokens on");
  const CostLayer longest = cost_layer(mechanism, options.width,
                                       longest_document(options.lengths.back(), options.document));
  Cost cost;
  cost.mechanism = &mechanism;
  cost.claim = options.document > 0 ? Claim() : longest.claim();
  cost.config = longest.config();
  prepare_memory();
  Bench(cost, options).measure();
  return cost;
}

void measure_again(Cost& cost, const MixerBenchOptions& options) {
  prepare_memory();
  Bench(cost, options).measure_again();
}

}  // namespace tessera::analysis
