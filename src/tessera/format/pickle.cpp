#include "tessera/format/pickle.h"

#include <algorithm>
#include <array>
#include <unordered_map>

namespace tessera::format {
namespace {

using Kind = PickleNode::Kind;

constexpr size_t kMaxPickleNodes = 16'000'000;  // a million tensors, each with its arguments
constexpr uint8_t kMinProtocol = 2, kMaxProtocol = 5;
constexpr std::string_view kOrderedDict = "collections.OrderedDict";

// those that are read
enum Opcode : uint8_t {
  kProto = 0x80,
  kFrame = 0x95,
  kStop = '.',
  kMark = '(',
  kNone = 'N',
  kTrue = 0x88,
  kFalse = 0x89,
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kLong1 = 0x8a,
  kBinFloat = 'G',
  kBinUnicode = 'X',
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kShortBinString = 'U',
  kBinString = 'T',
  kShortBinBytes = 'C',
  kBinBytes = 'B',
  kEmptyTuple = ')',
  kTuple = 't',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kGlobal = 'c',
  kStackGlobal = 0x93,
  kReduce = 'R',
  kBuild = 'b',
  kBinPersid = 'Q',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kMemoize = 0x94,
  kBinGet = 'h',
  kLongBinGet = 'j',
};

struct OpcodeName {
  uint8_t code;
  std::string_view name;
};
// and those that are not, to be refused by name
constexpr OpcodeName kRefusedOpcodes[] = {{'0', "POP"},          {'1', "POP_MARK"},
                                          {'2', "DUP"},          {'F', "FLOAT"},
                                          {'I', "INT"},          {'L', "LONG"},
                                          {'P', "PERSID"},       {'S', "STRING"},
                                          {'V', "UNICODE"},      {'d', "DICT"},
                                          {'g', "GET"},          {'i', "INST"},
                                          {'l', "LIST"},         {'o', "OBJ"},
                                          {'p', "PUT"},          {0x81, "NEWOBJ"},
                                          {0x82, "EXT1"},        {0x83, "EXT2"},
                                          {0x84, "EXT4"},        {0x8b, "LONG4"},
                                          {0x8e, "BINBYTES8"},   {0x91, "FROZENSET"},
                                          {0x92, "NEWOBJ_EX"},   {0x96, "BYTEARRAY8"},
                                          {0x97, "NEXT_BUFFER"}, {0x98, "READONLY_BUFFER"}};

std::string opcode_name(uint8_t code) {
  for (const OpcodeName& known : kRefusedOpcodes)
    if (known.code == code) return std::string(known.name);
  return fmt::format("0x{:02x}", code);
}

class PickleMachine {
 public:
  PickleMachine(std::span<const std::byte> bytes,
                size_t from,
                PickleNames allowed,
                const FileSource& source)
      : reader_(bytes, source), from_(from), allowed_(allowed), source_(source) {}

  Pickle read() {
    if (next() != kProto) refuse("begins with another opcode than PROTO; expected a pickle");
    const auto protocol = reader_.read<uint8_t>(kWhat);
    if (protocol < kMinProtocol || protocol > kMaxProtocol)
      refuse("protocol {}; expected {} to {}", protocol, kMinProtocol, kMaxProtocol);
    for (uint8_t code = next(); code != kStop; code = next()) run(code);
    if (stack_.size() != 1 || !marks_.empty())
      refuse("ends with {} values; expected one", stack_.size());
    out_.root = stack_.front();
    out_.bytes = reader_.position();
    return std::move(out_);
  }

 private:
  static constexpr std::string_view kWhat = "a pickle";

  uint8_t next() {
    at_ = reader_.position();
    return reader_.read<uint8_t>(kWhat);
  }

  template <class... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> text, Args&&... args) const {
    source_.fail("the pickle, byte {}: {}", from_ + at_,
                 fmt::format(text, std::forward<Args>(args)...));
  }

  void run(uint8_t code) {
    switch (code) {
      case kFrame:
        reader_.read<uint64_t>(kWhat);  // how the file was buffered
        return;
      case kMark:
        return marks_.push_back(stack_.size());
      case kNone:
        return push({});
      case kTrue:
      case kFalse:
        return push_integer(Kind::boolean, code == kTrue);
      case kBinInt:
        return push_integer(Kind::integer, reader_.read<int32_t>(kWhat));
      case kBinInt1:
        return push_integer(Kind::integer, reader_.read<uint8_t>(kWhat));
      case kBinInt2:
        return push_integer(Kind::integer, reader_.read<uint16_t>(kWhat));
      case kLong1:
        return push_long(reader_.take(reader_.read<uint8_t>(kWhat), kWhat));
      case kBinFloat:
        reader_.take(sizeof(double), kWhat);
        return push({.kind = Kind::real});
      case kShortBinUnicode:
      case kShortBinString:
        return push_text(Kind::text, reader_.read<uint8_t>(kWhat));
      case kBinUnicode:
      case kBinString:
        return push_text(Kind::text, reader_.read<uint32_t>(kWhat));
      case kBinUnicode8:
        return push_text(Kind::text, reader_.read<uint64_t>(kWhat));
      case kShortBinBytes:
        return push_text(Kind::bytes, reader_.read<uint8_t>(kWhat));
      case kBinBytes:
        return push_text(Kind::bytes, reader_.read<uint32_t>(kWhat));
      case kEmptyTuple:
        return push_items(Kind::tuple, {});
      case kTuple:
        return push_items(Kind::tuple, after_mark());
      case kTuple1:
      case kTuple2:
      case kTuple3:
        return push_items(Kind::tuple, last(code - kTuple1 + 1U));
      case kEmptyList:
        return push_items(Kind::list, {});
      case kEmptyDict:
        return push_items(Kind::dict, {});
      case kEmptySet:
        return push_items(Kind::set, {});
      case kAppend:
        return add(Kind::list, last(1));
      case kAppends:
        return add(Kind::list, after_mark());
      case kAddItems:
        return add(Kind::set, after_mark());
      case kSetItem:
        return add(Kind::dict, last(2));
      case kSetItems:
        return add(Kind::dict, after_mark());
      case kGlobal: {
        const std::string_view module = line();
        return push_global(module, line());
      }
      case kStackGlobal:
        return stack_global();
      case kReduce:
        return reduce();
      case kBuild:
        return build();
      case kBinPersid:
        return push_items(Kind::persistent, last(1));
      case kBinPut:
        return put(reader_.read<uint8_t>(kWhat));
      case kLongBinPut:
        return put(reader_.read<uint32_t>(kWhat));
      case kMemoize:
        return put(static_cast<uint32_t>(memo_.size()));
      case kBinGet:
        return get(reader_.read<uint8_t>(kWhat));
      case kLongBinGet:
        return get(reader_.read<uint32_t>(kWhat));
      default:
        refuse("opcode {} is not one that dictionaries of tensors need", opcode_name(code));
    }
  }

  // --- the stack ---

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  std::vector<PickleIndex> last(size_t count) {
    if (stack_.size() - floor() < count)
      refuse("takes {} values from a stack of {}", count, stack_.size() - floor());
    const auto begin = stack_.end() - static_cast<ptrdiff_t>(count);
    std::vector<PickleIndex> values(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    return values;
  }

  std::vector<PickleIndex> after_mark() {
    if (marks_.empty()) refuse("goes back to a mark; there is none");
    auto values = last(stack_.size() - marks_.back());
    marks_.pop_back();
    return values;
  }

  PickleIndex top() const {
    if (stack_.size() == floor()) refuse("takes a value from an empty stack");
    return stack_.back();
  }

  void push(PickleNode node) {
    if (out_.nodes.size() >= kMaxPickleNodes) refuse("more than {} values", kMaxPickleNodes);
    stack_.push_back(static_cast<PickleIndex>(out_.nodes.size()));
    out_.nodes.push_back(std::move(node));
  }

  void push_integer(Kind kind, int64_t value) { push({.kind = kind, .integer = value}); }

  void push_long(std::span<const std::byte> bytes) {
    if (bytes.size() > sizeof(int64_t)) return push({.kind = Kind::wide, .text = text_of(bytes)});
    int64_t value = 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    const size_t unused =
        8 * (sizeof(int64_t) - bytes.size());  // its sign is that of its last byte
    if (bytes.empty()) return push_integer(Kind::integer, 0);
    push_integer(Kind::integer,
                 static_cast<int64_t>(static_cast<uint64_t>(value) << unused) >> unused);
  }

  void push_text(Kind kind, uint64_t size) {
    push({.kind = kind, .text = text_of(reader_.take(size, "a text of the pickle"))});
  }

  void push_items(Kind kind, std::vector<PickleIndex> items) {
    push({.kind = kind, .items = std::move(items)});
  }

  void add(Kind kind, const std::vector<PickleIndex>& values) {
    PickleNode& to = out_.nodes[top()];
    if (to.kind != kind) refuse("adds items to {}; expected {}", name_of(to.kind), name_of(kind));
    if (kind == Kind::dict && values.size() % 2 != 0)
      refuse("a dictionary has a key without a value");
    to.items.insert(to.items.end(), values.begin(), values.end());
  }

  // --- names and calls ---

  std::string_view line() {
    const auto rest = text_of(reader_.bytes().subspan(reader_.position()));
    const size_t end = rest.find('\n');
    if (end == std::string_view::npos) refuse("a name that does not end");
    reader_.take(end + 1, kWhat);
    return rest.substr(0, end);
  }

  void push_global(std::string_view module, std::string_view name) {
    const std::string global = fmt::format("{}.{}", module, name);
    if (global != kOrderedDict && !allowed_(global))
      refuse(
          "it names {}, which no dictionary of tensors needs; nothing of the file was run. "
          "Expected "
          "the weights alone, as torch.save(model.state_dict(), ...) writes them",
          in_quotes(global));
    push({.kind = Kind::global, .text = interned(global)});
  }

  void stack_global() {
    const auto names = last(2);
    const PickleNode &module = out_.at(names[0]), &name = out_.at(names[1]);
    if (module.kind != Kind::text || name.kind != Kind::text) refuse("a name that is no text");
    push_global(module.text, name.text);
  }

  /// The same text, kept by the pickle. There are few: all of them are allowed.
  std::string_view interned(const std::string& global) { return *out_.names.insert(global).first; }

  void reduce() {
    auto items = last(2);
    const PickleNode &callee = out_.at(items[0]), &arguments = out_.at(items[1]);
    if (callee.kind != Kind::global) refuse("calls {}; expected a name", name_of(callee.kind));
    if (arguments.kind != Kind::tuple)
      refuse("calls {} with {}; expected a tuple", in_quotes(callee.text), name_of(arguments.kind));
    if (callee.text != kOrderedDict) return push_items(Kind::call, std::move(items));
    PickleNode dict{.kind = Kind::dict, .ordered = true};
    if (!arguments.items.empty()) dict.items = pairs_in(arguments);
    push(std::move(dict));
  }

  /// Keys and values of OrderedDict([(key, value), ...]).
  std::vector<PickleIndex> pairs_in(const PickleNode& arguments) {
    std::vector<PickleIndex> items;
    const PickleNode& pairs = out_.at(arguments.items[0]);
    if (arguments.items.size() != 1 || pairs.kind != Kind::list)
      refuse("calls OrderedDict with other values than a list of pairs");
    // one list may be asked for again and again
    pairs_read_ += pairs.items.size();
    if (pairs_read_ > kMaxPickleNodes)
      refuse("calls OrderedDict with more than {} pairs in all", kMaxPickleNodes);
    for (const PickleIndex index : pairs.items) {
      const PickleNode& pair = out_.at(index);
      if ((pair.kind != Kind::tuple && pair.kind != Kind::list) || pair.items.size() != 2)
        refuse("calls OrderedDict with other values than a list of pairs");
      items.insert(items.end(), pair.items.begin(), pair.items.end());
    }
    return items;
  }

  /// An attribute of an OrderedDict next to its items (versions of modules) has no effect on
  /// them.
  void build() {
    const auto state = last(1);
    const PickleNode& object = out_.at(top());
    if (!object.ordered)
      refuse("sets attributes of {}{}", name_of(object.kind),
             object.kind == Kind::call
                 ? fmt::format(" of {}", in_quotes(out_.at(object.items[0]).text))
                 : "");
  }

  // --- the memo: values that are used again ---

  void put(uint32_t index) { memo_[index] = top(); }

  void get(uint32_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) refuse("uses value {} of its memo, which has none there", index);
    stack_.push_back(found->second);
  }

  ByteReader reader_;
  size_t from_;
  PickleNames allowed_;
  const FileSource& source_;
  size_t at_ = 0;  // of the opcode that runs
  size_t pairs_read_ = 0;  // of lists, for OrderedDict
  Pickle out_;
  std::vector<PickleIndex> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  std::unordered_map<uint32_t, PickleIndex> memo_;
};

}  // namespace

Pickle read_pickle(std::span<const std::byte> bytes,
                   size_t from,
                   PickleNames allowed,
                   const FileSource& source) {
  return PickleMachine(bytes, from, allowed, source).read();
}

std::string_view name_of(PickleNode::Kind kind) {
  constexpr std::array<std::string_view, 14> kNames = {
      "None",    "a flag", "a number",     "a number", "a number", "a text", "bytes",
      "a tuple", "a list", "a dictionary", "a set",    "a name",   "a call", "a reference"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace tessera::format
