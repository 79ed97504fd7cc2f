// Text by every way that goes through a state: guessed ahead and rolled back, by beams that part
// and are dropped, and in parts with a file between them. Mixers and whole specs only: the other
// slots keep no state of their own.
#include "tessera/analysis/contract/checks.h"
#include "tessera/base/temporary_folder.h"
#include "tessera/infer/engine/beam.h"
#include "tessera/infer/engine/generate.h"

namespace tessera::contract {
namespace {

constexpr int64_t kNew = 8;

bool of_interest(const Case& c) {
  const bool mixes = c.mechanism == nullptr || c.mechanism->slot == spec::Slot::mixer;
  return mixes && !c.encoder_only && model::read_model_spec(c.decoder).no_state_reason().empty();
}

// unequal lengths; one says the same again and again, which look-up goes on with
Rows prompts() {
  return {random_ids(9, 1), {4, 5, 6, 4, 5, 6, 4, 5, 6, 4, 5}, random_ids(2, 2)};
}

Rows said(const infer::Generations& generations) {
  Rows rows;
  for (const infer::Generation& row : generations.rows) rows.push_back(row.token_ids);
  return rows;
}

std::string text_of(const Rows& rows) {
  std::string text;
  for (const Ids& row : rows) text += fmt::format("[{}]", fmt::join(row, " "));
  return text;
}

infer::GenerateOptions greedy(int64_t tokens = kNew) {
  infer::GenerateOptions options;
  options.max_new_tokens = tokens;
  return options;
}

void expect_drafted(const Rig& rig,
                    const infer::Speculation& how,
                    const Rows& want,
                    const char* what,
                    Report& report) {
  infer::GenerateOptions options = greedy();
  options.speculation = how;
  const auto got = infer::generate(rig.model, nullptr, prompts(), options);
  report.expect(said(got) == want, "{}: {}; plain {}", what, text_of(said(got)), text_of(want));
  report.expect(got.drafted_tokens > 0, "{}: no draft tokens", what);
  if (how.draft == &rig.model)
    report.expect(got.accepted_tokens == got.drafted_tokens,
                  "{}: {} of {} draft tokens of the model itself were accepted", what, got.accepted_tokens,
                  got.drafted_tokens);
}

struct Beam {
  Ids made;
  double log_p = 0;
};

/// The best of `beams` after kNew tokens, every one computed from its beginning.
Ids searched(const Rig& rig, const Ids& begin, int64_t beams) {
  std::vector<Beam> live(1);
  for (int64_t step = 0; step < kNew; ++step) {
    std::vector<Beam> all;
    for (const Beam& beam : live) {
      Ids ids = begin;
      ids.insert(ids.end(), beam.made.begin(), beam.made.end());
      const Tensor last = whole(rig, {ids})[-1].to(at::kDouble).log_softmax(0);
      for (int64_t id = 0; id < last.size(0); ++id) {
        all.push_back({beam.made, beam.log_p + last[id].item<double>()});
        all.back().made.push_back(id);
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Beam& a, const Beam& b) { return a.log_p > b.log_p; });
    all.resize(static_cast<size_t>(beams));
    live = std::move(all);
  }
  return live[0].made;
}

}  // namespace

void check_speculation(const Case& c, Report& report) {
  if (!of_interest(c)) return;
  const Rig rig = make_rig(c.decoder, at::kFloat);
  const Rows want = said(infer::generate(rig.model, nullptr, prompts(), greedy()));
  expect_drafted(rig, {.lookup = 3, .draft_tokens = 4}, want, "look-up", report);
  if (rig.spec().encoder) return;  // a draft reads no source
  expect_drafted(rig, {.draft = &rig.model, .draft_tokens = 3}, want, "its own draft", report);
  // one that errs now and then: guesses are kept in part
  const Rig weaker = make_rig(c.decoder, at::kFloat);
  const at::NoGradGuard no_gradients;
  for (const auto& [name, value] : weaker.values) value.mul_(0.8);
  expect_drafted(rig, {.draft = &weaker.model, .draft_tokens = 3}, want, "another draft", report);
}

void check_beams(const Case& c, Report& report) {
  if (!of_interest(c)) return;
  const at::NoGradGuard no_gradients;
  const Rig rig = make_rig(c.decoder, at::kFloat);
  // what stands beside an encoder answers the source that whole() encodes
  const bool answers = rig.spec().encoder != nullptr;
  const Ids prompt = answers ? random_ids(kSource, 60) : random_ids(9, 1),
            begin = answers ? Ids{rig.spec().start} : prompt;
  for (const int64_t beams : {1, 3}) {
    const Ids got = infer::beam_search(rig.model, nullptr, {prompt}, greedy(), {.beams = beams})
                        .rows[0]
                        .token_ids,
              want = searched(rig, begin, beams);
    report.expect(got == want, "{} beams: {}; without a state {}", beams, fmt::join(got, " "),
                  fmt::join(want, " "));
  }
}

void check_session(const Case& c, Report& report) {
  if (!of_interest(c)) return;
  const Rig rig = make_rig(c.decoder, at::kFloat);
  // what stands beside an encoder answers the source that whole() encodes
  const bool answers = rig.spec().encoder != nullptr;
  const Rows begin = answers ? Rows(2, random_ids(kSource, 60)) : prompts();
  Rows want;  // by whole texts, without a state
  for (const Ids& prompt : begin) {
    const at::NoGradGuard no_gradients;
    want.push_back(searched(rig, answers ? Ids{rig.spec().start} : prompt, 1));
  }
  const std::string print = infer::fingerprint(rig.model, nullptr);
  for (const int64_t lookup : {0, 3}) {
    infer::Session session;
    Rows got(want.size()), next = begin;
    for (const int64_t n : {int64_t{1}, int64_t{4}, kNew - 5}) {
      infer::GenerateOptions options = greedy(n);
      options.speculation.lookup = lookup;
      options.session = &session;
      const Rows more = said(infer::generate(rig.model, nullptr, next, options));
      for (size_t r = 0; r < got.size(); ++r)
        got[r].insert(got[r].end(), more[r].begin(), more[r].end());
      const TemporaryFolder folder;
      infer::save_session(folder / "session", session, print);
      session = infer::load_session(folder / "session", rig.model, print,
                                    options.speculation.max_pending());
      next.assign(want.size(), {});
    }
    report.expect(got == want, "look-up {}: in parts {}; in one {}", lookup, text_of(got),
                  text_of(want));
  }
}

}  // namespace tessera::contract
