#include "runtime/datasets/plain_pickle.h"

#include <algorithm>
#include <cstdio>
#include <map>

namespace penstock {
namespace {

using Kind = PlainPickle::Kind;

constexpr size_t kMostValues = 300'000;
constexpr uint64_t kMostText = 256;  // of what is kept; an array's data are longer, and stay where they are
constexpr int kDeepest = 16;
constexpr size_t kMostRemembered = 100'000;  // texts and names; a batch of CIFAR has one for each picture
constexpr size_t kMostMarks = 64;

// What is refused, on the way up.
struct Refused {
  std::string why;
};

class Machine {
 public:
  explicit Machine(std::span<const std::byte> bytes) : bytes_(bytes) {}

  PlainPickle run() {
    for (;;) {
      const uint8_t instruction = byte();
      if (instruction == '.') break;
      carry_out(instruction);
    }
    return pop();
  }

 private:
  [[noreturn]] static void refuse(const std::string& why) { throw Refused{why}; }

  void need(uint64_t size) const {
    if (size > bytes_.size() - at_) refuse("it is cut off");
  }
  uint8_t byte() {
    need(1);
    return std::to_integer<uint8_t>(bytes_[at_++]);
  }
  uint64_t number(int size) {
    uint64_t value = 0;
    for (int i = 0; i < size; ++i) value |= static_cast<uint64_t>(byte()) << (8 * i);
    return value;
  }
  std::string line() {
    std::string text;
    for (char c = static_cast<char>(byte()); c != '\n'; c = static_cast<char>(byte())) {
      if (text.size() >= kMostText) refuse("a name in it is too long");
      text += c;
    }
    return text;
  }

  void push(PlainPickle value) {
    if (++values_ > kMostValues) refuse("it has too many values");
    stack_.push_back(std::move(value));
  }
  static PlainPickle of_kind(Kind kind) {
    PlainPickle value;
    value.kind = kind;
    return value;
  }
  void push_number(int64_t value) {
    push(of_kind(Kind::number));
    stack_.back().number = value;
  }
  void push_empty(Kind kind) { push(of_kind(kind)); }
  void push_text(uint64_t size) {
    need(size);
    PlainPickle value = of_kind(Kind::text);
    value.data = at_;
    value.data_size = size;
    if (size <= kMostText) value.text.assign(reinterpret_cast<const char*>(bytes_.data() + at_), size);
    at_ += size;
    push(std::move(value));
  }
  void push_name(const std::string& module, const std::string& name) {
    push(of_kind(Kind::name));
    stack_.back().text = module + " " + name;
  }
  PlainPickle pop() {
    if (stack_.empty() || (!marks_.empty() && marks_.back() >= stack_.size())) refuse("it is damaged");
    PlainPickle value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  PlainPickle& top(Kind kind) {
    if (stack_.empty() || stack_.back().kind != kind) refuse("it is damaged");
    return stack_.back();
  }
  // Everything behind the last mark.
  std::vector<PlainPickle> pop_marked() {
    if (marks_.empty()) refuse("it is damaged");
    const auto first = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PlainPickle> items(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }
  void push_tuple(size_t size) {
    std::vector<PlainPickle> items(size);
    for (size_t i = size; i-- > 0;) items[i] = pop();
    push(of_kind(Kind::tuple));
    append(Kind::tuple, std::move(items));
  }
  void append(Kind kind, std::vector<PlainPickle> items) {
    PlainPickle& value = top(kind);
    if (kind == Kind::dict && items.size() % 2 != 0) refuse("it is damaged");
    for (const PlainPickle& item : items) value.depth = std::max(value.depth, item.depth + 1);
    if (value.depth > kDeepest) refuse("its values are nested too deeply");
    value.items.insert(value.items.end(), std::make_move_iterator(items.begin()), std::make_move_iterator(items.end()));
  }

  // Lists are filled after they were remembered; nothing that is read here asks for one again.
  void remember(uint64_t place) {
    if (stack_.empty()) refuse("it is damaged");
    const PlainPickle& value = stack_.back();
    if (value.kind == Kind::text || value.kind == Kind::name) {
      memo_[place] = value;
      if (memo_.size() > kMostRemembered) refuse("it remembers too many values");
    } else {
      memo_.erase(place);
    }
    memo_size_ = std::max(memo_size_, place + 1);
  }
  void recall(uint64_t place) {
    const auto found = memo_.find(place);
    if (found == memo_.end()) refuse("it refers to a value that is neither text nor a name");
    push(found->second);
  }

  // NumPy: an array is made empty and then told what it is; a dtype is made of its name. Other names are not called.
  void call() {
    const PlainPickle arguments = pop();
    const PlainPickle called = pop();
    if (called.kind != Kind::name || arguments.kind != Kind::tuple) refuse("it is damaged");
    const bool array =
        called.text == "numpy.core.multiarray _reconstruct" || called.text == "numpy._core.multiarray _reconstruct";
    if (array) return push_empty(Kind::array);
    if (called.text == "numpy dtype" && !arguments.items.empty()) {
      PlainPickle dtype = arguments.items[0];
      dtype.kind = Kind::name;
      return push(std::move(dtype));
    }
    refuse("it calls '" + called.text + "'");
  }

  void tell() {
    const PlainPickle state = pop();
    if (stack_.empty()) refuse("it is damaged");
    if (stack_.back().kind == Kind::name) return;  // a dtype's byte order and fields
    PlainPickle& array = top(Kind::array);
    const auto& parts = state.items;
    const bool good = state.kind == Kind::tuple && parts.size() == 5 && parts[1].kind == Kind::tuple &&
                      parts[2].kind == Kind::name && parts[4].kind == Kind::text;
    if (!good) refuse("its array is described in a way that is not known");
    if (parts[2].text != "u1" && parts[2].text != "|u1") refuse("its array is not of unsigned bytes");
    if (parts[3].number != 0) refuse("its array is in Fortran's order");
    if (!array.extents.empty()) refuse("its array is described twice");
    uint64_t count = 1;
    for (const PlainPickle& extent : parts[1].items) {
      const bool fits = extent.kind == Kind::number && extent.number > 0 &&
                        static_cast<uint64_t>(extent.number) <= parts[4].data_size / count;
      if (!fits) refuse("its array has another size than it says");
      count *= static_cast<uint64_t>(extent.number);
      array.extents.push_back(static_cast<uint64_t>(extent.number));
    }
    if (count != parts[4].data_size) refuse("its array has another size than it says");
    array.data = parts[4].data;
    array.data_size = parts[4].data_size;
  }

  void carry_out(uint8_t instruction) {
    switch (instruction) {
      case 0x80: byte(); return;     // protocol
      case 0x95: number(8); return;  // frame
      case '(':
        if (marks_.size() >= kMostMarks) refuse("its values are nested too deeply");
        marks_.push_back(stack_.size());
        return;
      case ')': return push_empty(Kind::tuple);
      case ']': return push_empty(Kind::list);
      case '}': return push_empty(Kind::dict);
      case 'N': return push_empty(Kind::nothing);
      case 0x88: return push_number(1);
      case 0x89: return push_number(0);
      case 'K': return push_number(static_cast<int64_t>(number(1)));
      case 'M': return push_number(static_cast<int64_t>(number(2)));
      case 'J': return push_number(static_cast<int32_t>(static_cast<uint32_t>(number(4))));
      case 'U':
      case 'C':
      case 0x8c: return push_text(number(1));
      case 'T':
      case 'X':
      case 'B': return push_text(number(4));
      case 0x8d:
      case 0x8e: return push_text(number(8));
      case 'q': return remember(number(1));
      case 'r': return remember(number(4));
      case 0x94: return remember(memo_size_);
      case 'h': return recall(number(1));
      case 'j': return recall(number(4));
      case 't': {
        std::vector<PlainPickle> items = pop_marked();
        push_empty(Kind::tuple);
        return append(Kind::tuple, std::move(items));
      }
      case 0x85: return push_tuple(1);
      case 0x86: return push_tuple(2);
      case 0x87: return push_tuple(3);
      case 'a': {
        std::vector<PlainPickle> one(1);
        one[0] = pop();
        return append(Kind::list, std::move(one));
      }
      case 'e': return append(Kind::list, pop_marked());
      case 's': {
        std::vector<PlainPickle> pair(2);
        pair[1] = pop();
        pair[0] = pop();
        return append(Kind::dict, std::move(pair));
      }
      case 'u': return append(Kind::dict, pop_marked());
      case 'c': {
        const std::string module = line();
        return push_name(module, line());
      }
      case 0x93: {
        const PlainPickle name = pop();
        return push_name(pop().text, name.text);
      }
      case 'R': return call();
      case 'b': return tell();
      default: {
        char text[64];
        std::snprintf(text, sizeof text, "instruction 0x%02x of pickle is not read here", instruction);
        refuse(text);
      }
    }
  }

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  std::vector<PlainPickle> stack_;
  std::vector<size_t> marks_;
  std::map<uint64_t, PlainPickle> memo_;
  uint64_t memo_size_ = 0;
  size_t values_ = 0;
};

}  // namespace

const PlainPickle* PlainPickle::find(std::string_view key) const {
  if (kind != Kind::dict) return nullptr;
  for (size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i].kind == Kind::text && items[i].text == key) return &items[i + 1];
  }
  return nullptr;
}

std::string read_plain_pickle(std::span<const std::byte> bytes, PlainPickle& out) {
  try {
    out = Machine(bytes).run();
    return {};
  } catch (const Refused& refused) {
    return refused.why;
  }
}

}  // namespace penstock
