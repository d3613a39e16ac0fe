// Python pickles of plain values and NumPy arrays, looked through without running anything: what CIFAR's "python version"
// consists of.
//
//   PlainPickle value;
//   std::string why = read_plain_pickle(bytes, value);         // empty: fine
//   const PlainPickle* labels = value.find("labels");          // of a dict; null: it has none
//   const PlainPickle* data = value.find("data");              // an array: data->data is where it begins in `bytes`
//
// A pickle is a program for a stack machine (Python's pickletools.py lists its instructions). Those that build numbers, text,
//   lists, tuples and dicts are carried out here. Of calls one is known, NumPy's array of unsigned bytes, and it is not
//   called either: its arguments say where its data are. All else is refused by name.
// Nothing of an array or a long text is copied: they say where they stand in `bytes`, and mean nothing without these.
// Trust: sizes are checked before they are used; values, what is remembered, and nesting have limits.
// Thread-safety: a pure function. Failure: the reason is returned, and `out` is then what it was before.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {

struct PlainPickle {
  enum class Kind : uint8_t { nothing, number, text, list, tuple, dict, name, array };
  Kind kind = Kind::nothing;
  int64_t number = 0;                // also of booleans
  std::string text;                  // of at most 256 bytes; a name: "module name"
  std::vector<PlainPickle> items;    // of a dict: key, value, key, value
  std::vector<uint64_t> extents;     // of an array of bytes, row after row
  uint64_t data = 0, data_size = 0;  // of an array or a text: where it stands
  int depth = 0;                     // of values in values

  const PlainPickle* find(std::string_view key) const;
};

std::string read_plain_pickle(std::span<const std::byte> bytes, PlainPickle& out);

}  // namespace penstock
