#include "tessera/ops/weights/input_drops.h"

#include <utility>

namespace tessera::ops {
namespace {

InputDrops::DropPtr& of_this_thread() {
  thread_local InputDrops::DropPtr drop;
  return drop;
}

}  // namespace

InputDrops::InputDrops(DropPtr drop) : before_(std::exchange(of_this_thread(), std::move(drop))) {}

InputDrops::~InputDrops() {
  of_this_thread() = std::move(before_);
}

const InputDrops::DropPtr& InputDrops::current() {
  return of_this_thread();
}

}  // namespace tessera::ops
