#include "tessera/base/resident.h"

#include <unistd.h>

#include <fstream>

namespace tessera {

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

}  // namespace tessera
