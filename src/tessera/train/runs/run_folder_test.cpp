#include "tessera/base/output_file.h"
#include "tessera/train/runs/run_folder.h"

#include <signal.h>
#include <sys/resource.h>

#include "tessera/train/runs/run_log.h"
#include "tessera/train/train_testing.h"

namespace tessera::train::run_folder_test {
namespace {

namespace fs = std::filesystem;

void commit(const fs::path& run, int64_t step, const std::string& content, int64_t keep = 0) {
  PendingCheckpoint pending(run, step);
  write_file_atomically(pending.folder() / "data", content);
  pending.commit(keep);
}

TEST(RunLock, OneTrainerAtATime) {
  const TemporaryFolder folder;
  const fs::path run = folder / "deep/run";
  {
    const RunLock lock(run);
    expect_error(ErrorKind::resource, fmt::format("another trainer (process {})", getpid()),
                 [&] { const RunLock second(run); });
  }
  const RunLock again(run);
}

TEST(Checkpoint, IsWholeOrAbsent) {
  const TemporaryFolder folder;
  {
    const PendingCheckpoint dropped(folder.path(), 3);
    EXPECT_TRUE(fs::exists(folder / "step-3.partial"));
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
  commit(folder.path(), 4, "four");
  verify_checkpoint(folder / "step-4");
  EXPECT_EQ(read_text_file(folder / "latest/data"), "four");

  // what a killed trainer leaves
  fs::create_directory(folder / "step-5.partial");
  EXPECT_EQ(checkpoint_steps(folder.path()), std::vector<int64_t>{4});
  remove_partial_checkpoints(folder.path());
  EXPECT_FALSE(fs::exists(folder / "step-5.partial"));
  EXPECT_TRUE(fs::exists(folder / "step-4"));
}

TEST(Checkpoint, KeepsTheNewest) {
  const TemporaryFolder folder;
  for (const int64_t step : {5, 10, 100, 15}) commit(folder.path(), step, "x");
  EXPECT_EQ(checkpoint_steps(folder.path()), (std::vector<int64_t>{5, 10, 15, 100}));
  commit(folder.path(), 200, "x", 2);
  EXPECT_EQ(checkpoint_steps(folder.path()), (std::vector<int64_t>{100, 200}));
}

TEST(Checkpoint, DamageIsNamed) {
  const TemporaryFolder folder;
  const auto damaged = [&](const std::string& part) {
    expect_error(ErrorKind::file, part, [&] { verify_checkpoint(folder / "step-1"); });
  };
  commit(folder.path(), 1, "content");
  folder.write("step-1/data", "contenT");
  damaged("step-1/data: its SHA-256 differs");
  folder.write("step-1/data", "content and more");
  damaged("step-1/data: 16 bytes; the manifest says 7");
  fs::remove(folder / "step-1/data");
  damaged("step-1/data: ");
  folder.write("step-1/manifest.json",
               R"({"version": 1, "files": [{"name": "../data", "bytes": 1, "sha256": ""}]})");
  damaged("\"../data\" leaves the folder");
  for (const char* bad : {"[]", "{}", "{\"version\": 2, \"files\": []}",
                          "{\"version\": 1, \"files\": [3]}", "{\"version\": 1, \"files\": {}}"}) {
    folder.write("step-1/manifest.json", bad);
    damaged("manifest");
  }
  fs::remove(folder / "step-1/manifest.json");
  damaged("manifest.json");
}

TEST(Checkpoint, FullDiskKeepsTheOldOne) {
  const TemporaryFolder folder;
  commit(folder.path(), 1, "old");
  // a limit on the size of files stands in for the disk
  struct rlimit before {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(commit(folder.path(), 2, std::string(5000, 'x')), Error);
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_EQ(checkpoint_steps(folder.path()), std::vector<int64_t>{1});
  EXPECT_FALSE(fs::exists(folder / "step-2.partial"));
  verify_checkpoint(folder / "latest");
}

TEST(RunFolder, IsHeldWhileATrainerWorks) {
  if (!fs::exists("/proc/locks")) GTEST_SKIP() << "no /proc/locks";
  const TemporaryFolder folder;
  EXPECT_FALSE(is_held(folder.path()));
  {
    const RunLock lock(folder.path());
    EXPECT_TRUE(is_held(folder.path()));
  }
  EXPECT_TRUE(fs::exists(folder / "lock"));
  EXPECT_FALSE(is_held(folder.path()));
}

TEST(RunLog, ContinuesAfterAStep) {
  const TemporaryFolder folder;
  {
    RunLog log(folder.path(), 0);
    for (const int64_t step : {1, 2, 3})
      log.write({.step = step, .loss = 0.1 * static_cast<double>(step), .tokens = 5 * step});
  }
  const std::string before = read_text_file(folder / "log.jsonl");
  folder.write("log.jsonl", before + "{\"step\": 4, \"lo");  // cut off by a crash
  {
    RunLog log(folder.path(), 2);
    log.write({.step = 3, .loss = 0.1 * 3, .tokens = 15});
  }
  EXPECT_EQ(read_text_file(folder / "log.jsonl"), before);
  const std::string csv = read_text_file(folder / "log.csv");
  EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 4);
  EXPECT_TRUE(csv.starts_with("step,loss,lr,")) << csv;
}

TEST(RunLog, TheTableTakesWhatComesUpOnTheWay) {
  const TemporaryFolder folder;
  const auto line = [](int64_t step) {
    LogLine out{.step = step, .loss = 0.5, .tokens = 10 * step};
    if (step >= 2) out.losses["z, \"w\""] = 0.25;
    if (step == 3) out.norms = {{"embed", {{"gradient", 2.5}}}};
    return out;
  };
  const auto table = [&] { return read_text_file(folder / "log.csv"); };
  {
    RunLog log(folder.path(), 0);
    for (const int64_t step : {1, 2, 3, 4}) log.write(line(step));
  }
  const std::string whole = table();
  EXPECT_EQ(whole,
            "step,loss,lr,grad_norm,tokens,tokens_per_s,seconds,valid_loss,valid_bits_per_byte,"
            "accuracy,\"losses/z, \"\"w\"\"\",norms/embed/gradient\n"
            "1,0.5,0.0,0.0,10,0.0,0.0,,,,,\n"
            "2,0.5,0.0,0.0,20,0.0,0.0,,,,0.25,\n"
            "3,0.5,0.0,0.0,30,0.0,0.0,,,,0.25,2.5\n"
            "4,0.5,0.0,0.0,40,0.0,0.0,,,,0.25,\n");
  {
    RunLog log(folder.path(), 2);
    EXPECT_EQ(table().find("norms"), std::string::npos);
    for (const int64_t step : {3, 4}) log.write(line(step));
  }
  EXPECT_EQ(table(), whole);
}

TEST(RunLog, NumbersOfALine) {
  const auto numbers = numbers_of(json_of(
      R"({"step": 3, "loss": 0.5, "alarms": ["a"], "losses": {"z": 2},
          "experts": {"layers.0": {"load": [1, 2], "entropy": 0.25}}})"));
  const std::map<std::string, double> found(numbers.begin(), numbers.end());
  EXPECT_EQ(found, (std::map<std::string, double>{
                       {"step", 3}, {"loss", 0.5}, {"losses/z", 2}, {"experts/layers.0/entropy", 0.25}}));
}

TEST(RunLog, LinesHoldCounts) {
  const auto line = [](const char* text) { return log_line_of(json_of(text), "log"); };
  EXPECT_EQ(line(R"({"step": 3, "tokens": 15})").tokens, 15);
  for (const char* text : {R"({"step": 1e300})", R"({"step": -1})", R"({"step": "3"})",
                           R"({"step": 9223372036854775808})"})
    test::expect_error(ErrorKind::file, "\"step\": found ", [&] { line(text); });
  test::expect_error(ErrorKind::file, "\"tokens\": found 1e+300; expected a count",
                     [&] { line(R"({"step": 3, "tokens": 1e300})"); });
  test::expect_error(ErrorKind::file, "without \"step\"", [&] { line("{}"); });
}

}  // namespace
}  // namespace tessera::train::run_folder_test
