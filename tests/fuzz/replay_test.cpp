// Replays the corpora: every target reads its seeds, and cheap changes of each of them, so that no
// target rots and no finding comes back. Needs no clang.
//
//   TESSERA_FUZZ_SECONDS=60 build/release/tests/fuzz/fuzz_test --gtest_filter='*gguf*'
//
// goes on with random changes for that long per target. A finding is written to the working
// directory as finding-TARGET.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <unistd.h>

#include "fuzz.h"

#include "tessera/base/mapped_file.h"
#include "tessera/base/rng.h"

namespace tessera::fuzz::replay_test {

/// As GoogleTest finds it.
void PrintTo(const Target& target, std::ostream* out) {
  *out << target.name;
}

namespace {

namespace fs = std::filesystem;

constexpr unsigned kSecondsPerInput = 20;  // more is a hang

const fs::path& corpora() {
  static const fs::path path = fs::path(TESSERA_SOURCE_DIR) / "tests/fuzz/corpus";
  return path;
}

using Seeds = std::map<std::string, std::string>;  // by file name

Seeds seeds_of(const std::string& target) {
  Seeds seeds;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(corpora() / target, none))
    seeds[entry.path().filename().string()] = read_text_file(entry.path());
  return seeds;
}

// What is being read, for the signal that ends the program.
std::string g_reading, g_input;

void keep(const std::string& target, const std::string& input) {
  std::ofstream("finding-" + target, std::ios::binary) << input;
}

void on_crash(int signal) {
  const std::string line = "fuzz: signal " + std::to_string(signal) + " while reading " +
                           g_reading + (signal == SIGALRM ? ": a hang\n" : "\n");
  if (write(STDERR_FILENO, line.data(), line.size()) < 0) _exit(1);
  keep(g_reading.substr(0, g_reading.find(' ')), g_input);
  std::signal(signal, SIG_DFL);
  raise(signal);
}

/// Whether the target keeps its promises on this input.
bool passes(const Target& target, const std::string& what, const std::string& input) {
  g_reading = std::string(target.name) + " " + what;
  g_input = input;
  alarm(kSecondsPerInput);
  std::string finding;
  try {
    // memory of its own size: what reads beyond it is seen by a sanitizer
    const std::vector<std::byte> bytes(
        reinterpret_cast<const std::byte*>(input.data()),
        reinterpret_cast<const std::byte*>(input.data()) + input.size());
    target.run(bytes);
  } catch (const std::exception& error) {
    finding = error.what();
  }
  alarm(0);
  if (finding.empty()) return true;
  keep(target.name, input);
  ADD_FAILURE() << g_reading << ": " << finding;
  return false;
}

/// The file cut at every eighth, and one bit at a time changed at 24 places.
bool passes_changed(const Target& target, const std::string& name, const std::string& seed) {
  bool good = true;
  for (size_t eighth = 0; eighth < 8; ++eighth)
    good &= passes(target, name + " cut at " + std::to_string(eighth) + "/8",
                   seed.substr(0, seed.size() * eighth / 8));
  constexpr size_t kPlaces = 24;
  for (size_t i = 0; i < std::min(kPlaces, seed.size()); ++i) {
    const size_t at = seed.size() <= kPlaces ? i : (2 * i + 1) * seed.size() / (2 * kPlaces);
    std::string changed = seed;
    changed[at] = static_cast<char>(changed[at] ^ (1 << (i * 3 % 8)));
    good &= passes(target, name + " with another byte " + std::to_string(at), changed);
  }
  return good;
}

/// Random changes of seeds: bytes, stretches, numbers, pieces of other seeds.
class Changes {
 public:
  explicit Changes(const Seeds& seeds) {
    for (const auto& [name, seed] : seeds) seeds_.push_back(seed);
  }

  std::string next() {
    std::string input = seeds_[below(seeds_.size())];
    for (size_t n = 1 + below(4); n > 0; --n) change(input);
    return input;
  }

 private:
  size_t below(size_t n) {
    return n == 0 ? 0 : static_cast<size_t>(key_.bits(counter_++) % static_cast<uint64_t>(n));
  }

  void change(std::string& input) {
    static constexpr std::string_view kWords[] = {"0",
                                                  "-1",
                                                  "1e308",
                                                  "9223372036854775807",
                                                  "18446744073709551615",
                                                  "4294967298",
                                                  "null",
                                                  "true",
                                                  "[]",
                                                  "{}",
                                                  "\"\"",
                                                  "\"x\"",
                                                  "2.5",
                                                  "1e-320"};
    const size_t at = below(input.size() + 1), length = 1 + below(16);
    const std::string& other = seeds_[below(seeds_.size())];
    switch (below(7)) {
      case 0:
        if (at < input.size()) input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        return;
      case 1:
        if (at < input.size()) input[at] = static_cast<char>(below(256));
        return;
      case 2:
        input.erase(at, length);
        return;
      case 3:
        input.insert(at, input.substr(below(input.size() + 1), length));
        return;
      case 4:
        input.replace(at, length, other.substr(below(other.size() + 1), length));
        return;
      case 5:
        input = input.substr(0, at) + other.substr(below(other.size() + 1));
        return;
      default:
        return change_value(input, at, std::string(kWords[below(std::size(kWords))]));
    }
  }

  /// A JSON value that stands somewhere after `at` becomes another.
  static void change_value(std::string& input, size_t at, const std::string& word) {
    const size_t colon = input.find_first_of(":[,", at);
    if (colon == std::string::npos) return;
    const size_t begin = std::min(input.find_first_not_of(" \n", colon + 1), input.size());
    size_t end = std::min(input.find_first_of(",]}", begin), input.size());
    if (begin < input.size() && input[begin] == '"')
      end = std::min(input.find('"', begin + 1), input.size() - 1) + 1;
    input.replace(begin, end - begin, word);
  }

  std::vector<std::string> seeds_;
  RandomKey key_{7};
  uint64_t counter_ = 0;
};

class Corpus : public testing::TestWithParam<Target> {
 protected:
  static void SetUpTestSuite() {
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM})
      std::signal(signal, on_crash);
  }
};

TEST_P(Corpus, KeepsItsPromises) {
  const Target& target = GetParam();
  const Seeds seeds = seeds_of(target.name);
  ASSERT_FALSE(seeds.empty()) << "no seeds in " << corpora() / target.name;
  const int64_t before = times_read();
  for (const auto& [name, seed] : seeds) EXPECT_TRUE(passes(target, name, seed));
  EXPECT_GT(times_read(), before) << "every seed is refused";
  EXPECT_TRUE(passes(target, "nothing", ""));
  for (const auto& [name, seed] : seeds) EXPECT_TRUE(passes_changed(target, name, seed));
  const char* asked = std::getenv("TESSERA_FUZZ_SECONDS");
  if (asked == nullptr) return;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::seconds(std::atoi(asked));
  Changes changes(seeds);
  int64_t inputs = 0;
  for (; Clock::now() < end; ++inputs)
    ASSERT_TRUE(passes(target, "random change " + std::to_string(inputs), changes.next()));
  std::printf("fuzz: %s: %lld inputs in %s s\n", target.name, static_cast<long long>(inputs),
              asked);
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus, testing::ValuesIn(targets()), [](const auto& info) {
  return std::string(info.param.name);
});

TEST(Fuzz, EveryCorpusHasItsTarget) {
  for (const auto& entry : fs::directory_iterator(corpora()))
    if (entry.is_directory()) {
      const std::string name = entry.path().filename().string();
      EXPECT_TRUE(fs::exists(corpora().parent_path() / (name + "_fuzz.cpp"))) << name;
    }
}

// --- what counts as a finding ------------------------------------------------------------------

TEST(FuzzRun, LetsErrorsOfItsKindsPass) {
  EXPECT_NO_THROW(run([] { fail(ErrorKind::file, "x", "bad"); }));
  EXPECT_NO_THROW(run([] { fail(ErrorKind::spec, "x", "bad"); }, {ErrorKind::spec}));
}

TEST(FuzzRun, FindsErrorsOfOtherKinds) {
  EXPECT_THROW(run([] { fail(ErrorKind::spec, "x", "bad"); }), BrokenPromise);
  EXPECT_THROW(run([] { fail(ErrorKind::internal, "x", "bug"); }), BrokenPromise);
  EXPECT_THROW(run([] { fail(ErrorKind::internal, "x", "bug"); }, {ErrorKind::internal}),
               BrokenPromise);
}

TEST(FuzzRun, FindsOtherExceptions) {
  EXPECT_THROW(run([] { throw std::bad_alloc(); }), std::bad_alloc);
  EXPECT_THROW(run([] { std::string("ab").at(2); }), std::out_of_range);
}

}  // namespace
}  // namespace tessera::fuzz::replay_test
