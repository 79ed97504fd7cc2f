#include "tessera/analysis/contract/checks.h"
#include "tessera/base/finest_grain.h"
#include "tessera/base/temporary_folder.h"
#include "tessera/infer/engine/generate.h"
#include "tessera/model/call_plan.h"
#include "tessera/model/kv_quantization.h"
#include "tessera/nn/position/position_config.h"

namespace tessera::contract {
namespace {

constexpr int64_t kTokens = 17;

at::TensorOptions of(at::ScalarType type) {
  return at::TensorOptions().dtype(type);
}

int64_t size_of(const Ids& ids) {
  return static_cast<int64_t>(ids.size());
}

/// Why this configuration of a mechanism with a recurrent form cannot have it, "" when it can.
std::string own_reason(const Case& c) {
  return spec::read_part(c.mechanism->slot, c.part, scope_for(c)).config->no_state_reason();
}

/// Whether the case has a state at all; a case without one must say why, as it declares.
bool has_state(const Case& c, Report& report) {
  const model::ModelSpec spec = model::read_model_spec(c.decoder);
  const std::string reason = spec.no_state_reason();
  const bool declared =
      c.mechanism == nullptr || (c.mechanism->info.forms.recurrent && own_reason(c).empty());
  report.expect(c.encoder_only || declared == reason.empty(), "declares {}, but a model with it {}",
                declared ? "a recurrent form" : "no recurrent form",
                reason.empty() ? "has a state" : "has none: " + reason);
  if (!reason.empty())
    report.refuses(ErrorKind::spec, reason, "a state", [&] { model::State(spec, 1); });
  return reason.empty();
}

/// Every per-chunk form of the mechanism in this case: the spec with another chunk.
std::vector<Json> chunkings(const Case& c, Report& report) {
  if (c.mechanism == nullptr || !c.mechanism->info.forms.chunked) return {};
  std::vector<Json> out;
  for (const int64_t chunk : {1, 2, 5, 64}) {
    Json part = c.part;
    const bool known = c.mechanism->schema()["properties"].contains("chunk");
    report.expect(known,
                  "declares a chunked form, but has no field \"chunk\" to choose its length");
    if (!known) return {};
    part["chunk"] = chunk;
    out.push_back(host(*c.mechanism, part, c.encoder_only ? "encoder" : "decoder"));
  }
  return out;
}

struct Run {
  Tensor y;
  std::map<std::string, Tensor> grads;
};

/// Output and gradients without a state, or by calls of the given lengths.
Run run(const Rig& rig, const Ids& ids, const std::vector<int64_t>& lengths = {}) {
  Run out;
  out.grads = gradients(rig, [&] {
    if (lengths.empty()) {
      out.y = whole(rig, {ids});
    } else {
      model::State state(rig.spec(), 1, 0, of(rig.values.begin()->second.scalar_type()));
      out.y = feed_split(rig, state, 0, ids, lengths);
    }
    return out.y;
  });
  return out;
}

void compare(const Run& got,
             const Run& want,
             double tolerance,
             double gradient_tolerance,
             const std::string& what,
             Report& report) {
  report.expect(difference(got.y, want.y) <= tolerance, "{}: outputs differ by {:.3g}", what,
                difference(got.y, want.y));
  double largest = 0;
  for (const auto& [name, grad] : want.grads)
    if (grad.defined()) largest = std::max(largest, grad.abs().max().item<double>());
  for (const auto& [name, grad] : want.grads) {
    if (!grad.defined() || grad.abs().max().item<double>() < 1e-6 * largest) continue;
    report.expect(difference(got.grads.at(name), grad) <= gradient_tolerance,
                  "{}: the gradient of {} differs by {:.3g}", what, name,
                  difference(got.grads.at(name), grad));
  }
}

void check_files(const Rig& rig, const model::State& state, const Ids& next, Report& report) {
  const TemporaryFolder folder;
  const auto path = folder / "state.safetensors";
  state.save(path, "model A");
  model::State loaded(rig.spec(), state.rows());
  loaded.load(path, "model A");
  model::State copy = state.fork();
  for (int64_t r = 0; r < state.rows(); ++r) {
    report.expect(loaded.length(r) == state.length(r),
                  "a loaded row has {} tokens; it was saved with {}", loaded.length(r),
                  state.length(r));
    report.expect(same_bits(feed(rig, loaded, {{r, next}}), feed(rig, copy, {{r, next}})),
                  "a loaded row continues with other bits");
  }
  report.refuses(ErrorKind::file, "another model", "a state of another model",
                 [&] { model::State(rig.spec(), state.rows()).load(path, "model B"); });
  report.refuses(ErrorKind::file, "rows", "a state of another number of rows",
                 [&] { model::State(rig.spec(), state.rows() + 1).load(path, "model A"); });
}

/// Whether every layer sees every token.
bool sees_all(const model::ModelSpec& spec) {
  const auto layout = model::state_layout(spec);
  return std::none_of(layout.begin(), layout.end(),
                      [](const model::BranchState& branch) { return branch.selective; });
}

void check_rows(const Rig& rig, Report& report) {
  const at::NoGradGuard no_gradients;
  const Ids a = random_ids(9, 1), b = random_ids(4, 2), next = random_ids(5, 3);
  model::State state(rig.spec(), 2);
  feed(rig, state, {{0, a}, {1, b}});
  const auto continued = [&](const Ids& before) {
    model::State alone(rig.spec(), 1);
    feed(rig, alone, {{0, before}});
    return feed(rig, alone, {{0, next}});
  };
  const Tensor after_a = continued(a), after_b = continued(b);
  const auto behind = [&](Ids text) {
    text.insert(text.end(), next.begin(), next.end());
    return whole(rig, {text}).narrow(0, size_of(text) - size_of(next), size_of(next));
  };
  report.expect(same_bits(after_a, behind(a)) && same_bits(after_b, behind(b)),
                "a row continues with other bits than the whole text has");
  const auto expect_rows = [&](model::State& s, const std::vector<bool>& is_a, const char* what) {
    report.expect(s.rows() == static_cast<int64_t>(is_a.size()), "{}: {} rows", what, s.rows());
    for (size_t r = 0; r < is_a.size(); ++r)
      report.expect(
          same_bits(feed(rig, s, {{static_cast<int64_t>(r), next}}), is_a[r] ? after_a : after_b),
          "{}: row {} continues with other bits", what, r);
  };
  // bytes are what the plan promises, but where a layer sees what it chooses
  const bool plannable = sees_all(rig.spec());
  int64_t declared = 0;
  for (const int64_t length : {size_of(a), size_of(b)}) {
    const int64_t source = rig.spec().encoder ? kSource : 0;
    int64_t row = 0;
    for (const model::BranchState& branch : model::state_layout(rig.spec()))
      row += spec::state_bytes(branch.tensors, length, source);
    const int64_t planned = model::make_plan(rig.spec(), length, source).state_bytes;
    report.expect(row == planned || !plannable, "the plan says {} bytes, the declarations {}",
                  planned, row);
    declared += row;
  }
  report.expect(state.bytes() == declared || !plannable,
                "the state holds {} bytes; declared are {}", state.bytes(), declared);
  check_files(rig, state, next, report);

  model::State picked = state.select({1, 0, 1});
  expect_rows(picked, {false, true, false}, "select");
  model::State joined = state.select({0});
  joined.append(state);
  expect_rows(joined, {true, true, false}, "append");
  model::State shorter = state.fork();
  shorter.remove(0);
  expect_rows(shorter, {false}, "remove");
  model::State moved = state.fork();
  moved.to(at::kCPU);
  expect_rows(moved, {true, false}, "to(cpu)");
  // copies that were detached or moved do not write into each other
  model::State fork = state.fork();
  fork.detach();
  fork.to(at::kCPU);
  expect_rows(fork, {true, false}, "fork");
  expect_rows(fork = state.fork(), {true, false}, "fork of a state whose fork continued");
  state.detach();
  fork = state.fork();
  expect_rows(state, {true, false}, "the forked state");
  expect_rows(fork, {true, false}, "fork after detach");
  report.refuses(ErrorKind::input, "row", "row 2 of 2", [&] { state.select({2}); });
  report.refuses(ErrorKind::input, "row", "row -1", [&] { state.remove(-1); });
}

/// A call that does not begin where the row ends, or names a row that is not there, is refused and
/// changes nothing.
void check_calls(const Rig& rig, Report& report) {
  const at::NoGradGuard no_gradients;
  const Ids ids = random_ids(6, 1), next = random_ids(3, 2);
  model::State state(rig.spec(), 1), clean(rig.spec(), 1);
  feed(rig, state, {{0, ids}});
  feed(rig, clean, {{0, ids}});
  const auto call = [&](int64_t row, int64_t start) {
    nn::Batch batch = nn::Batch::of(Rows{next}, {start});
    batch.segments[0].row = row;
    model::ForwardOptions options;
    options.state = &state;
    rig.model.hidden(batch, options);
  };
  report.refuses(ErrorKind::input, "6", "a call from position 0 on a row of 6 tokens",
                 [&] { call(0, 0); });
  report.refuses(ErrorKind::input, "row", "a call on row 1 of 1", [&] { call(1, 0); });
  report.refuses(ErrorKind::input, "row", "one row twice in a call", [&] {
    feed(rig, state, {{0, next}, {0, next}});
  });
  report.expect(same_bits(feed(rig, state, {{0, next}}), feed(rig, clean, {{0, next}})),
                "a refused call changed the state");
}

void check_detach(const Json& json, Report& report) {
  const Rig rig = make_rig(json, at::kDouble);
  model::State state(rig.spec(), 1, 0, of(at::kDouble));
  scalar_of(feed(rig, state, {{0, random_ids(6, 1)}})).backward();
  state.detach();
  scalar_of(feed(rig, state, {{0, random_ids(6, 2)}}))
      .backward();  // throws where the first graph is still attached
  report.expect(state.length(0) == 12, "{} tokens after 12", state.length(0));
}

/// Pages of any size give the same bits as one piece, forks stand apart, and nothing leaks.
void check_pages(const Rig& rig, Report& report) {
  const at::NoGradGuard no_gradients;
  const Ids ids = random_ids(kTokens, 1), next = random_ids(4, 2), other = random_ids(3, 3);
  const std::vector<int64_t> lengths = {6, 1, 1, 7, 2};  // a prefix is not cut
  const auto state_of = [&](int64_t page) {
    return model::State(rig.spec(), 1, 4, of(at::kFloat), {.page = page});
  };
  model::State whole = state_of(0);
  const Tensor want = feed_split(rig, whole, 0, ids, lengths);
  const Tensor ahead = feed(rig, whole, {{0, next}}, true);
  whole.commit(0, 1);
  const Tensor after = feed(rig, whole, {{0, other}});
  for (const int64_t page : {1, 2, 16, 1000}) {
    model::State state = state_of(page);
    report.expect(same_bits(feed_split(rig, state, 0, ids, lengths), want),
                  "pages of {} give other bits than one piece", page);
    const int64_t pages = state.pages(), live = state.pool().live();
    report.expect(pages == live, "pages of {}: {} held, {} taken", page, pages, live);
    {
      model::State fork = state.select({0, 0});
      report.expect(state.pool().live() == live, "pages of {}: a fork took {} pages", page,
                    state.pool().live() - live);
      feed(rig, fork, {{0, random_ids(4, 8)}, {1, random_ids(2, 9)}});
    }
    report.expect(state.pool().live() == live, "pages of {}: {} left of a fork that is gone", page,
                  state.pool().live() - live);
    report.expect(same_bits(feed(rig, state, {{0, next}}, true), ahead),
                  "pages of {}: pending tokens have other bits", page);
    state.commit(0, 1);
    report.expect(same_bits(feed(rig, state, {{0, other}}), after),
                  "pages of {}: other bits after a roll-back", page);
    state.remove(0);
  }
}

/// Keys and values of fewer bits: close, the same bits however the input is cut and through a file,
/// as many bytes as planned; or refused where every mechanism needs all bits.
void check_kv_types(const Rig& rig, Report& report) {
  using spec::KvType;
  const at::NoGradGuard no_gradients;
  const auto layout = model::state_layout(rig.spec());
  // embeddings that are kept are neither keys nor values: they stay as they are
  const bool packs =
      std::any_of(layout.begin(), layout.end(), [](const model::BranchState& branch) {
        return branch.name != "embed" && model::can_quantize_kv(branch.tensors);
      });
  const auto state_of = [&](KvType type) {
    return model::State(rig.spec(), 1, 0, of(at::kFloat), {.type = type, .page = 2});
  };
  if (!packs)
    return report.refuses(ErrorKind::spec, "kv-type", "keys and values of few bits",
                          [&] { state_of(KvType::int8); });
  const Ids ids = random_ids(kTokens, 1), next = random_ids(3, 2);
  const Tensor exact = whole(rig, {ids});
  for (const KvType type : {KvType::f16, KvType::bf16, KvType::int8, KvType::fp8}) {
    model::State state = state_of(type), other = state_of(type);
    const Tensor want = feed_split(rig, state, 0, ids, {kTokens});
    report.expect(!same_bits(want, exact), "{}: no number changed", name_of(type));
    const double error = normalised_mean_square(want, exact), most = type == KvType::f16    ? 1e-5
                                                                     : type == KvType::bf16 ? 1e-4
                                                                                            : 0.05;
    report.expect(error < most, "{}: mean square error {:.3g}; at most {:g}", name_of(type), error,
                  most);
    report.expect(same_bits(feed_split(rig, other, 0, ids, {5, 1, 1, 10}), want),
                  "{}: a split input gives other bits", name_of(type));
    const int64_t planned =
        model::make_plan(rig.spec(), kTokens, rig.spec().encoder ? kSource : 0, type).state_bytes;
    report.expect(state.bytes() == planned || !sees_all(rig.spec()),
                  "{}: {} bytes; the plan says {}", name_of(type), state.bytes(), planned);
    const TemporaryFolder folder;
    const auto path = folder / "state.safetensors";
    state.save(path, "model A");
    other = state_of(type);
    other.load(path, "model A");
    report.expect(same_bits(feed(rig, other, {{0, next}}), feed(rig, state, {{0, next}})),
                  "{}: a loaded state continues with other bits", name_of(type));
    report.refuses(ErrorKind::file, "kv-type", "a state of another kv-type", [&] {
      state_of(type == KvType::fp8 ? KvType::int8 : KvType::fp8).load(path, "model A");
    });
    report.refuses(ErrorKind::input, "kv-type", "rows of another kv-type",
                   [&] { state_of(KvType::f32).append(state); });
  }
}

/// Feeds `drafts` as pending tokens in calls of the given lengths, keeps n, and goes on.
void check_one_roll_back(const Rig& rig,
                         const std::vector<std::vector<int64_t>>& rounds,
                         int64_t keep_of_last,
                         Report& report) {
  constexpr int64_t kMax = 5;
  model::State state(rig.spec(), 1, kMax), straight(rig.spec(), 1);
  const Ids prompt = random_ids(6, 1);
  feed(rig, state, {{0, prompt}});
  feed(rig, straight, {{0, prompt}});
  std::string story = "prompt 6";
  for (size_t round = 0; round < rounds.size(); ++round) {
    int64_t pending = 0;
    Ids drafts;
    model::State ahead = straight.fork();
    for (const int64_t n : rounds[round]) {
      const Ids ids = random_ids(n, 10 * round + static_cast<uint64_t>(pending) + 2);
      report.expect(same_bits(feed(rig, state, {{0, ids}}, true), feed(rig, ahead, {{0, ids}})),
                    "{}: pending tokens have other bits", story);
      drafts.insert(drafts.end(), ids.begin(), ids.end());
      pending += n;
    }
    report.expect(state.pending(0) == pending && state.length(0) == straight.length(0) + pending,
                  "{}: {} pending", story, state.pending(0));
    const int64_t keep = round + 1 < rounds.size() ? pending / 2 : std::min(keep_of_last, pending);
    story += fmt::format(", {} pending, {} kept", pending, keep);
    model::State twin =
        state.fork();  // its drafts are dropped; nothing of that may reach the original
    twin.commit(0, 0);
    state.commit(0, keep);
    if (keep > 0) feed(rig, straight, {{0, Ids(drafts.begin(), drafts.begin() + keep)}});
    feed(rig, twin, {{0, random_ids(4, 99)}});
    report.expect(state.length(0) == straight.length(0) && state.pending(0) == 0, "{}: {} tokens",
                  story, state.length(0));
  }
  const Ids next = random_ids(3, 77);
  model::State copy = state.fork();
  const Tensor want = feed(rig, straight, {{0, next}});
  report.expect(same_bits(feed(rig, state, {{0, next}}), want),
                "{}: continues with other bits than without the dropped tokens", story);
  report.expect(same_bits(feed(rig, copy, {{0, next}}), want), "{}: a fork continues with other bits",
                story);
  model::State after_fork = copy.fork();
  report.expect(same_bits(feed(rig, after_fork, {{0, next}}), feed(rig, straight, {{0, next}})),
                "{}: the second continuation differs", story);
}

void check_saved_roll_back(const Rig& rig, Report& report) {
  const TemporaryFolder folder;
  const auto path = folder / "state.safetensors";
  model::State state(rig.spec(), 1, 4);
  feed(rig, state, {{0, random_ids(6, 1)}});
  feed(rig, state, {{0, random_ids(4, 2)}}, true);
  report.refuses(ErrorKind::input, "pending", "saving pending tokens",
                 [&] { state.save(path, "x"); });
  state.commit(0, 2);
  state.save(path, "x");
  model::State loaded(rig.spec(), 1, 4);
  loaded.load(path, "x");
  const Ids next = random_ids(3, 3);
  report.expect(same_bits(feed(rig, loaded, {{0, next}}), feed(rig, state, {{0, next}})),
                "a state saved after a roll-back continues with other bits");
}

void check_pending_limits(const Rig& rig, Report& report) {
  model::State state(rig.spec(), 1, 3), straight(rig.spec(), 1);
  const Ids prompt = random_ids(6, 1), drafts = random_ids(2, 2), next = random_ids(2, 3);
  feed(rig, state, {{0, prompt}});
  feed(rig, straight, {{0, prompt}});
  feed(rig, state, {{0, drafts}}, true);
  feed(rig, straight, {{0, drafts}});
  report.refuses(ErrorKind::input, "at most 3", "a fourth pending token", [&] {
    feed(rig, state, {{0, next}}, true);
  });
  report.refuses(ErrorKind::input, "commit", "new tokens after pending ones", [&] {
    feed(rig, state, {{0, next}});
  });
  report.refuses(ErrorKind::input, "commit of 3", "a commit of more than is pending",
                 [&] { state.commit(0, 3); });
  report.refuses(ErrorKind::input, "commit of -1", "a commit of -1", [&] { state.commit(0, -1); });
  state.commit(0, 2);
  report.expect(same_bits(feed(rig, state, {{0, next}}), feed(rig, straight, {{0, next}})),
                "a refused call changed the state");
}

}  // namespace

std::string no_state(const Case& c) {
  return model::read_model_spec(c.decoder).no_state_reason();
}

void check_forms(const Case& c, Report& report) {
  const Ids ids = random_ids(kTokens, 1);
  const Rig f64 = make_rig(c.decoder, at::kDouble), f32 = make_rig(c.decoder, at::kFloat);
  const Run exact = run(f64, ids), single = run(f32, ids);
  for (const Json& json : chunkings(c, report)) {
    compare(run(make_rig(json, at::kDouble), ids), exact, 1e-10, 1e-10, "chunked in double",
            report);
    compare(run(make_rig(json, at::kFloat), ids), exact, 1e-5, 1e-4, "chunked in float32", report);
  }
  compare(single, exact, 1e-5, 1e-4, "float32", report);
  if (!has_state(c, report)) return;
  const std::vector<std::vector<int64_t>> splits = {
      Ids(kTokens, 1), {kTokens}, random_split(kTokens, 1), random_split(kTokens, 2)};
  for (const auto& lengths : splits) {
    const std::string what = fmt::format("calls of {}", fmt::join(lengths, "+"));
    compare(run(f64, ids, lengths), exact, 1e-10, 1e-10, what + " in double", report);
    compare(run(f32, ids, lengths), exact, 1e-5, 1e-4, what + " in float32", report);
  }
}

void check_same_bits(const Case& c, Report& report) {
  if (!has_state(c, report)) return;
  const at::NoGradGuard no_gradients;
  const Rig rig = make_rig(c.decoder, at::kFloat);
  const Ids ids = random_ids(kTokens, 1);
  const Tensor want = whole(rig, {ids});
  for (const uint64_t seed : {0, 1, 2, 3}) {
    const auto lengths = seed == 0   ? std::vector<int64_t>{kTokens}
                         : seed == 1 ? std::vector<int64_t>(kTokens, 1)
                                     : random_split(kTokens, seed);
    model::State state(rig.spec(), 1);
    report.expect(same_bits(feed_split(rig, state, 0, ids, lengths), want),
                  "calls of {} give other bits than one pass", fmt::join(lengths, "+"));
    // the same calls with other rows beside, at other positions
    model::State company(rig.spec(), 3);
    feed(rig, company, {{2, random_ids(5, 8)}});
    std::vector<Tensor> rows;
    auto next = ids.begin();
    for (const int64_t n : lengths) {
      const Tensor all =
          feed(rig, company,
               {{0, random_ids(1 + n % 3, 9)}, {1, Ids(next, next + n)}, {2, random_ids(2, 10)}});
      rows.push_back(all.narrow(0, 1 + n % 3, n));
      next += n;
      if (std::max(company.length(0), company.length(2)) > 30)
        company = company.select({1, 1, 1}).select({0, 1, 2});  // stay within learned positions
    }
    report.expect(same_bits(at::cat(rows), want), "other rows in the batch change the bits");
  }
  Rows many;
  for (uint64_t r = 0; r < 12; ++r)
    many.push_back(random_ids(20 + static_cast<int64_t>(r), 30 + r));
  const auto with_threads = [&](int n) {
    const Threads threads(n);
    return whole(rig, many);
  };
  const FinestGrain cut_small_loops;
  const Tensor one = with_threads(1);
  for (const int n : {2, 3}) {
    report.expect(same_bits(with_threads(n), one), "{} threads: other bits", n);
    const Threads threads(n);
    model::State state(rig.spec(), 1);
    report.expect(same_bits(feed_split(rig, state, 0, ids, {6, 1, 1, 7, 2}), want),
                  "{} threads: calls with a state give other bits", n);
  }
}

void check_state(const Case& c, Report& report) {
  if (!has_state(c, report)) return;
  const Rig rig = make_rig(c.decoder, at::kFloat);
  check_rows(rig, report);
  check_calls(rig, report);
  check_pages(rig, report);
  check_kv_types(rig, report);
  check_detach(c.decoder, report);
}

void check_roll_back(const Case& c, Report& report) {
  if (!has_state(c, report)) return;
  const at::NoGradGuard no_gradients;
  const Rig rig = make_rig(c.decoder, at::kFloat);
  for (int64_t keep = 0; keep <= 4; ++keep) check_one_roll_back(rig, {{4}}, keep, report);
  for (int64_t keep = 0; keep <= 5; ++keep) check_one_roll_back(rig, {{2, 3}}, keep, report);
  for (int64_t keep = 0; keep <= 3; ++keep)
    check_one_roll_back(rig, {{1, 2, 1}, {5}, {2, 1}}, keep, report);
  check_saved_roll_back(rig, report);
  check_pending_limits(rig, report);
}

void check_generate(const Case& c, Report& report) {
  if (c.encoder_only) return;  // check_refusals holds it to that
  const Rig rig = make_rig(c.decoder, at::kFloat);
  const Rows prompts = {random_ids(9, 1), random_ids(1, 2), random_ids(14, 3), random_ids(4, 4)};
  infer::GenerateOptions options;
  options.max_new_tokens = 10;
  std::vector<Ids> alone;
  for (const Ids& prompt : prompts)
    alone.push_back(infer::generate(rig.model, nullptr, {prompt}, options).rows[0].token_ids);
  for (const int64_t chunk : {1, 3, 1000}) {
    options.prefill_chunk = chunk;
    const auto together = infer::generate(rig.model, nullptr, prompts, options);
    for (size_t r = 0; r < prompts.size(); ++r) {
      report.expect(together.rows[r].token_ids == alone[r],
                    "row {} of a batch with prefill_chunk {}: {}; alone {}", r, chunk,
                    fmt::join(together.rows[r].token_ids, " "), fmt::join(alone[r], " "));
      report.expect(
          together.rows[r].token_ids.size() == 10 && together.rows[r].finish_reason == "length",
          "row {}: stopped early", r);
    }
  }
  options.prefill_chunk = 0;
  report.refuses(ErrorKind::usage, "prefill_chunk", "prefill_chunk 0",
                 [&] { infer::generate(rig.model, nullptr, prompts, options); });
}

namespace {

/// A row cut after n tokens goes on as one that never saw more.
void check_cut(const Rig& rig, Report& report) {
  const at::NoGradGuard no_gradients;
  const Ids ids = random_ids(14, 1), next = random_ids(5, 2);
  model::State state(rig.spec(), 1);
  feed(rig, state, {{0, ids}});
  bool loses = false;  // by declaration
  for (const model::BranchState& branch : model::state_layout(rig.spec()))
    for (const spec::StateDecl& decl : branch.tensors)
      loses = loses || decl.kind == spec::StateDecl::Kind::fixed ||
              (decl.keep > 0 && decl.entries(14) > decl.first + decl.keep);
  for (const int64_t n : {1, 5, 8, 13}) {
    report.expect(state.can_truncate(0, n) == !loses, "can be cut after {} of 14: {}", n,
                  state.can_truncate(0, n));
    if (loses) {
      report.refuses(ErrorKind::input, "cannot be truncated", "a cut",
                     [&] { state.truncated_copy(0, n); });
      continue;
    }
    model::State straight(rig.spec(), 1), cut = state.truncated_copy(0, n);
    feed(rig, straight, {{0, Ids(ids.begin(), ids.begin() + n)}});
    report.expect(cut.length(0) == n && cut.bytes() == straight.bytes(),
                  "cut after {}: {} tokens, {} bytes", n, cut.length(0), cut.bytes());
    report.expect(same_bits(feed(rig, cut, {{0, next}}), feed(rig, straight, {{0, next}})),
                  "cut after {}: continues with other bits", n);
  }
  report.expect(!state.can_truncate(0, 15) && !state.can_truncate(0, -1),
                "cut outside of what it holds");
  model::State two(rig.spec(), 2);
  two.put(1, state);
  model::State copy = state.fork();
  report.expect(same_bits(feed(rig, two, {{1, next}}), feed(rig, copy, {{0, next}})),
                "a row put elsewhere continues with other bits");
  report.expect(two.length(0) == 0 && state.length(0) == 14, "put changed another row");
}

}  // namespace

void check_prefix_cache(const Case& c, Report& report) {
  if (c.encoder_only || !has_state(c, report)) return;
  const Rig rig = make_rig(c.decoder, at::kFloat);
  const bool reads_ahead =
      c.mechanism != nullptr && c.mechanism->info.causality == spec::Causality::none &&
      (c.mechanism->slot == spec::Slot::mixer || c.mechanism->slot == spec::Slot::pattern);
  if (reads_ahead)
    return report.refuses(ErrorKind::usage, "lets tokens see later ones", "a prefix cache",
                          [&] { infer::PrefixCache(rig.model, {}); });
  const bool switches = model::CallPlan(rig.spec()).until(1) != nn::kAnglesStay;
  if (!switches) check_cut(rig, report);

  const auto behind = [](Ids begin, const Ids& rest) {
    begin.insert(begin.end(), rest.begin(), rest.end());
    return begin;
  };
  const Ids base = random_ids(9, 1);
  const Rows prompts = {behind(base, random_ids(3, 2)),
                        behind(base, random_ids(5, 3)),
                        behind(Ids(base.begin(), base.begin() + 5), random_ids(4, 4)),
                        behind(base, random_ids(3, 2)),
                        base,
                        random_ids(7, 5)};
  infer::GenerateOptions options;
  options.max_new_tokens = 8;
  std::vector<Ids> want;
  for (const Ids& prompt : prompts)
    want.push_back(infer::generate(rig.model, nullptr, {prompt}, options).rows[0].token_ids);
  infer::PrefixCache cache(rig.model, {.budget_bytes = 1 << 20, .snapshot_every = 4, .least = 1});
  options.prefix_cache = &cache;
  for (const int round : {0, 1}) {
    const auto got = infer::generate(rig.model, nullptr, prompts, options);
    for (size_t r = 0; r < prompts.size(); ++r) {
      report.expect(got.rows[r].token_ids == want[r], "round {}, row {}: {}; without a cache {}",
                    round, r, fmt::join(got.rows[r].token_ids, " "), fmt::join(want[r], " "));
      // the last token of a state that was cut is fed for its logits
      report.expect(round == 0 || got.rows[r].cached_tokens >= size_of(prompts[r]) - 1,
                    "row {}: {} of {} tokens out of the cache, all of which it has seen", r,
                    got.rows[r].cached_tokens, prompts[r].size());
    }
    report.expect(
        round > 0 || switches || got.rows[3].cached_tokens + got.rows[0].cached_tokens >= 12,
        "equal prompts of one batch were both computed");
  }
}

}  // namespace tessera::contract
