#include "tessera/train/optimizer/adafactor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace tessera::train {
namespace {

// rows whose squares one thread sums; sums of blocks are added in order
constexpr int64_t kRowsOfBlock = 64;

double squares_of(const float* x, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

}  // namespace

/// Constants of one update of one parameter.
struct Adafactor::Factors {
  double fresh;  // c
  double added;  // to the squares
  double least_mean, least_root;
  float scale;
  std::vector<double> means;  // of R, one per matrix
};

Adafactor::Adafactor(std::vector<ParameterInfo> slots, AdafactorSettings settings)
    : slots_(std::move(slots)), settings_(settings) {
  for (const ParameterInfo& slot : slots_) {
    const auto n = [](int64_t elements) { return static_cast<size_t>(elements); };
    ParameterState kept;
    if (slot.shape.size() >= 2) {
      kept.rows.resize(n(slot.matrices() * slot.rows()));
      kept.columns.resize(n(slot.matrices() * slot.columns()));
    } else {
      kept.whole.resize(n(slot.elements()));
    }
    if (settings_.beta1 > 0) kept.moment.resize(n(slot.elements()));
    kept_.push_back(std::move(kept));
  }
}

/// Updates R and K, or V, with the squares of the gradient.
void Adafactor::gather(const ParameterInfo& slot,
                       ParameterState& kept,
                       const Factors& f,
                       const float* g) const {
  const auto fresh = static_cast<float>(f.fresh);
  const auto added = static_cast<float>(f.added);
  const auto square = [&](float x) {
    const float scaled = x * f.scale;
    return scaled * scaled + added;
  };
  if (!kept.whole.empty()) {
    for (size_t i = 0; i < kept.whole.size(); ++i)
      kept.whole[i] += fresh * (square(g[i]) - kept.whole[i]);
    return;
  }
  const int64_t rows = slot.rows(), columns = slot.columns(),
                per = (rows + kRowsOfBlock - 1) / kRowsOfBlock, blocks = slot.matrices() * per;
  std::vector<float> sums(static_cast<size_t>(blocks * columns));
  parallel_for(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      float* column = sums.data() + b * columns;
      const int64_t matrix = b / per, first = b % per * kRowsOfBlock;
      for (int64_t r = first; r < std::min(first + kRowsOfBlock, rows); ++r) {
        const float* row = g + (matrix * rows + r) * columns;
        double sum = 0;
        for (int64_t c = 0; c < columns; ++c) {
          const float s = square(row[c]);
          column[c] += s;
          sum += s;
        }
        float& mean = kept.rows[static_cast<size_t>(matrix * rows + r)];
        mean += fresh * (static_cast<float>(sum / static_cast<double>(columns)) - mean);
      }
    }
  });
  for (int64_t matrix = 0; matrix < slot.matrices(); ++matrix)
    for (int64_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (int64_t b = matrix * per; b < (matrix + 1) * per; ++b)
        sum += sums[static_cast<size_t>(b * columns + c)];
      float& mean = kept.columns[static_cast<size_t>(matrix * columns + c)];
      mean += fresh * (static_cast<float>(sum / static_cast<double>(rows)) - mean);
    }
}

void Adafactor::over_rows(
    const ParameterInfo& slot,
    const ParameterState& kept,
    const Factors& f,
    const float* g,
    const std::function<void(int64_t row, std::span<const float> u)>& body) const {
  const int64_t columns = slot.columns(), all = slot.matrices() * slot.rows();
  const auto least = static_cast<float>(f.least_root * f.least_root);
  parallel_for(
      all, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, columns)),
      [&](int64_t begin, int64_t end) {
        std::vector<float> u(static_cast<size_t>(columns));
        for (int64_t r = begin; r < end; ++r) {
          const float* row = g + r * columns;
          const float* v = kept.whole.data();
          float by = 1;
          if (kept.whole.empty()) {
            const int64_t matrix = r / slot.rows();
            v = kept.columns.data() + matrix * columns;
            by = static_cast<float>(kept.rows[static_cast<size_t>(r)] /
                                    std::max(f.means[static_cast<size_t>(matrix)], f.least_mean));
          }
          for (int64_t c = 0; c < columns; ++c)
            u[static_cast<size_t>(c)] = row[c] * f.scale / std::sqrt(std::max(by * v[c], least));
          body(r, u);
        }
      });
}

void Adafactor::update(std::span<const Parameter> parameters, const Step& step) {
  const double c = std::pow(static_cast<double>(step.t), -settings_.decay_power);
  const double eps = settings_.torch_form ? std::numeric_limits<float>::epsilon() : 0;
  for (size_t s = 0; s < slots_.size(); ++s) {
    const Parameter& parameter = parameters[s];
    if (parameter.gradient == nullptr) continue;
    const ParameterInfo& slot = slots_[s];
    ParameterState& kept = kept_[s];
    Factors f{.fresh = c,
              .added = settings_.torch_form ? 0 : 1e-30,
              .least_mean = eps,
              .least_root = settings_.torch_form ? eps : 1e-19,
              .scale = static_cast<float>(step.scale),
              .means = {}};
    gather(slot, kept, f, parameter.gradient);
    const int64_t rows = slot.rows(), columns = slot.columns(), all = slot.matrices() * rows;
    for (int64_t matrix = 0; matrix < slot.matrices() && kept.whole.empty(); ++matrix) {
      const float* first = kept.rows.data() + matrix * rows;
      f.means.push_back(std::accumulate(first, first + rows, 0.0) / static_cast<double>(rows));
    }

    // root mean squares of the update and of the parameter, row by row
    std::vector<double> of_u(static_cast<size_t>(all)), of_w(static_cast<size_t>(all));
    over_rows(slot, kept, f, parameter.gradient, [&](int64_t row, std::span<const float> u) {
      of_u[static_cast<size_t>(row)] = squares_of(u.data(), columns);
      of_w[static_cast<size_t>(row)] = squares_of(parameter.weight + row * columns, columns);
    });
    const auto rms = [&](const std::vector<double>& sums) {
      return std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0) /
                       static_cast<double>(std::max<int64_t>(1, slot.elements())));
    };
    const double lr = step.lr * slot.lr_factor;
    double a = lr, keep = 1 - lr * slot.weight_decay;
    if (settings_.torch_form)
      a = std::max(settings_.smallest_rms, rms(of_w)) *
          std::min(lr, 1 / std::sqrt(static_cast<double>(step.t)));
    else if (settings_.scale_parameter)
      a *= std::max(settings_.smallest_rms, rms(of_w));
    if (!settings_.torch_form) keep = 1 - a * slot.weight_decay;
    const auto rate = static_cast<float>(a / std::max(1.0, rms(of_u) / settings_.clip)),
               kept_share = static_cast<float>(keep), beta1 = static_cast<float>(settings_.beta1);
    over_rows(slot, kept, f, parameter.gradient, [&](int64_t row, std::span<const float> u) {
      float* w = parameter.weight + row * columns;
      float* m = beta1 > 0 ? kept.moment.data() + row * columns : nullptr;
      for (int64_t i = 0; i < columns; ++i) {
        float by = rate * u[static_cast<size_t>(i)];
        if (m != nullptr) by = m[i] = beta1 * m[i] + (1 - beta1) * by;
        w[i] = kept_share * w[i] - by;
      }
    });
  }
}

std::vector<RuleState> Adafactor::state() {
  std::vector<RuleState> out;
  for (size_t s = 0; s < slots_.size(); ++s) {
    const ParameterInfo& slot = slots_[s];
    ParameterState& kept = kept_[s];
    const auto add = [&](const char* what, std::vector<int64_t> shape, std::vector<float>& values) {
      if (!values.empty())
        out.push_back({std::string(what) + "." + slot.name, slot.name, std::move(shape), DType::f32,
                       values.data()});
    };
    std::vector<int64_t> shape = slot.shape;
    if (shape.size() >= 2) {
      shape.pop_back();
      add("row_moment", shape, kept.rows);
      shape.back() = slot.columns();
      add("column_moment", shape, kept.columns);
    }
    add("second_moment", slot.shape, kept.whole);
    add("first_moment", slot.shape, kept.moment);
  }
  return out;
}

}  // namespace tessera::train
