// Python pickles as data: what they say, never what they do.
//
// A pickle is a program for a stack machine. The part of it that builds numbers, texts, tuples,
// lists, dictionaries and sets is run here; a name of Python is a value like any other, and a call
// is kept as what is called and with what. No name is looked up and nothing is called, so that no
// code can run. Names outside of the list that the caller gives, and opcodes that such files do not
// need, are refused by name. Memory is at most a fixed number of times the bytes of the pickle;
// nothing recurs, however deep it is nested. Protocols 2 to 5. Source: Lib/pickletools.py of
// CPython, which describes every opcode.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/format/file_source.h"

namespace tessera::format {

/// A value, by its index in Pickle::nodes.
using PickleIndex = uint32_t;

struct PickleNode {
  enum class Kind : uint8_t {
    none,
    boolean,  // integer 0 or 1
    integer,  // of 64 bits
    wide,     // an integer of more; `text` has its little-endian bytes
    real,     // its value is not kept: tensors need none
    text,     // UTF-8
    bytes,    // in `text`
    tuple,
    list,
    dict,  // items: key, value, key, value; of equal keys the last one counts
    set,
    global,      // `text` is "module.name"
    call,        // items: the global, the tuple of its arguments
    persistent,  // items: references to objects outside of the pickle
  };
  Kind kind = Kind::none;
  bool ordered = false;  // a dict: whether it is a collections.OrderedDict
  int64_t integer = 0;
  std::string_view text = {};  // a part of the file
  std::vector<PickleIndex> items = {};
};

struct Pickle {
  std::vector<PickleNode> nodes;
  std::set<std::string, std::less<>> names;  // the globals, each once
  PickleIndex root = 0;
  size_t bytes = 0;  // that it takes, to its STOP

  const PickleNode& at(PickleIndex index) const { return nodes[index]; }
};

/// Whether a pickle may name this. collections.OrderedDict needs no leave: it becomes a dict.
using PickleNames = bool (*)(std::string_view global);

/// The pickle at the start of `bytes`; `from` is their place in the file, for messages. Throws
/// Error(file).
Pickle read_pickle(std::span<const std::byte> bytes,
                   size_t from,
                   PickleNames allowed,
                   const FileSource& source);

/// "a list", for messages.
std::string_view name_of(PickleNode::Kind kind);

}  // namespace tessera::format
