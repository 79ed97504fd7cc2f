#include "tessera/base/resident.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "tessera/base/testing.h"

namespace tessera {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

TEST(Resident, PartsAreTheWhole) {
  const ResidentParts parts = resident_parts();
  if (parts.all() == 0) GTEST_SKIP() << "no /proc/self/smaps";
  EXPECT_GT(parts.program, 0);
  EXPECT_GT(parts.anonymous, 0);
  // the kernel counts pages of a process in batches
  EXPECT_NEAR(static_cast<double>(parts.all()), static_cast<double>(resident_bytes()), 4 * kMiB);
}

TEST(Resident, AFileIsNotAnonymousUntilItIsWrittenTo) {
  if (resident_parts().all() == 0) GTEST_SKIP() << "no /proc/self/smaps";
  const test::TemporaryFolder folder;
  const std::string path = folder.write("weights", std::string(16 * kMiB, 'w'));
  const int fd = open(path.c_str(), O_RDONLY);
  const ResidentParts before = resident_parts();
  auto* const mapped =
      static_cast<char*>(mmap(nullptr, 16 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0));
  ASSERT_NE(mapped, MAP_FAILED);
  size_t sum = 0;
  for (size_t i = 0; i < 16 * kMiB; i += 4096) sum += static_cast<size_t>(mapped[i]);
  EXPECT_EQ(sum, 4096u * 'w');
  const ResidentParts read = resident_parts();
  EXPECT_NEAR(static_cast<double>(read.files - before.files), 16.0 * kMiB, kMiB);
  EXPECT_NEAR(static_cast<double>(read.anonymous - before.anonymous), 0, kMiB);
  std::memset(mapped, 'x', 8 * kMiB);
  const ResidentParts written = resident_parts();
  EXPECT_NEAR(static_cast<double>(written.files - before.files), 8.0 * kMiB, kMiB);
  EXPECT_NEAR(static_cast<double>(written.anonymous - before.anonymous), 8.0 * kMiB, kMiB);
  munmap(mapped, 16 * kMiB);
  close(fd);
}

}  // namespace
}  // namespace tessera
