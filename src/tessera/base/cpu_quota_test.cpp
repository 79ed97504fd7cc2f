// Layouts of files as systemd, Docker and Kubernetes leave them (cgroups(7), "Control Group v2" of
// the kernel's documentation), in a folder that stands for "/".
#include "tessera/base/cpu_quota.h"

#include "tessera/base/testing.h"

namespace tessera::cpu_quota_test {
namespace {

using test::TemporaryFolder;

constexpr const char* kVersion2 =
    "22 1 0:21 / /proc rw,nosuid shared:1 - proc proc rw\n"
    "31 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

TEST(CpuQuota, NoControlGroupsLimitNothing) {
  const TemporaryFolder root;
  EXPECT_EQ(cpu_quota(root.path()), std::nullopt);
}

TEST(CpuQuota, ItIsTheLeastOfTheGroupAndThoseAroundIt) {
  const TemporaryFolder root;
  root.write("proc/self/mountinfo", kVersion2);
  root.write("proc/self/cgroup", "0::/system.slice/run.scope\n");
  root.write("sys/fs/cgroup/system.slice/run.scope/cpu.max", "400000 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 4);
  root.write("sys/fs/cgroup/system.slice/cpu.max", "150000 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 1.5);
  root.write("sys/fs/cgroup/system.slice/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 4);
  root.write("sys/fs/cgroup/system.slice/run.scope/cpu.max", "max 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), std::nullopt);
  root.write("sys/fs/cgroup/other.slice/cpu.max", "100000 100000\n");
  EXPECT_EQ(cpu_quota(root.path()), std::nullopt);
}

// docker run --cpus 2.5, and a host's path that is not mounted there
TEST(CpuQuota, AContainerReadsTheGroupThatItSees) {
  for (const char* group : {"0::/\n", "0::/docker/4f1a\n", "0::/../../docker/4f1a\n"}) {
    const TemporaryFolder root;
    root.write("proc/self/mountinfo", kVersion2);
    root.write("proc/self/cgroup", group);
    root.write("sys/fs/cgroup/cpu.max", "250000 100000\n");
    EXPECT_EQ(cpu_quota(root.path()), 2.5) << group;
  }
}

TEST(CpuQuota, Version1) {
  const TemporaryFolder root;
  root.write("proc/self/mountinfo",
             "35 30 0:30 /docker/4f1a /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup "
             "rw,cpu,cpuacct\n"
             "36 30 0:31 /docker/4f1a /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n");
  root.write("proc/self/cgroup", "5:cpuset:/docker/4f1a\n4:cpu,cpuacct:/docker/4f1a/job\n0::/\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "-1\n");
  root.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu_quota(root.path()), 3);
  root.write("sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "50000\n");
  EXPECT_EQ(cpu_quota(root.path()), 0.5);
}

TEST(CpuQuota, MalformedFilesLimitNothing) {
  for (const char* text : {"", "\n", "100000\n", "-5 100000\n", "1e5 100000\n", "100000 0\n",
                           "99999999999999999999 100000\n", "100000 100000 100000\n"}) {
    const TemporaryFolder root;
    root.write("proc/self/mountinfo",
               std::string("nonsense\n31 23 0:26 / - cgroup2\n") + kVersion2);
    root.write("proc/self/cgroup", "nonsense\n0::/\n");
    root.write("sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(cpu_quota(root.path()), std::nullopt) << text;
  }
}

TEST(AvailableCores, AreNoMoreThanAContainersQuota) {
  const TemporaryFolder root;
  const int all = available_cores(root.path());  // no control groups are there
  EXPECT_GE(all, 1);
  root.write("proc/self/mountinfo", "31 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  root.write("proc/self/cgroup", "0::/\n");
  const auto with = [&](const std::string& quota) {
    root.write("sys/fs/cgroup/cpu.max", quota + " 100000\n");
    return available_cores(root.path());
  };
  EXPECT_EQ(with("max"), all);
  EXPECT_EQ(with("20000"), 1);
  EXPECT_EQ(with("100000"), 1);
  EXPECT_EQ(with("100001"), std::min(all, 2));
  EXPECT_EQ(with("10000000000"), all);
}

}  // namespace
}  // namespace tessera::cpu_quota_test
