// Reads back what write_npy wrote, for tests: enough of the format for our own files, and strict about it.
#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/base/file_system.h"

namespace penstock {

struct NpyArray {
  std::string descriptor;  // "<f4"
  std::vector<int64_t> shape;
  std::vector<std::byte> data;

  template <class T>
  std::vector<T> as() const {
    std::vector<T> values(data.size() / sizeof(T));
    std::memcpy(values.data(), data.data(), values.size() * sizeof(T));
    return values;
  }
};

inline NpyArray read_npy(const std::string& path) {
  std::vector<std::byte> file;
  posix_file_system().read_file(path, int64_t{1} << 32, file);
  const std::string text(reinterpret_cast<const char*>(file.data()), file.size());
  if (text.size() < 10 || text.substr(0, 8) != std::string("\x93NUMPY\x01\x00", 8)) {
    throw std::runtime_error("'" + path + "' is no .npy file of version 1.0");
  }
  const size_t length = static_cast<unsigned char>(text[8]) + 256u * static_cast<unsigned char>(text[9]);
  const std::string header = text.substr(10, length);
  if ((10 + length) % 64 != 0 || header.back() != '\n' || header.find("'fortran_order': False") == std::string::npos) {
    throw std::runtime_error("'" + path + "': unexpected header " + header);
  }
  NpyArray array;
  const size_t descriptor = header.find("'descr': '") + 10;
  array.descriptor = header.substr(descriptor, header.find('\'', descriptor) - descriptor);
  size_t at = header.find("'shape': (") + 10;
  while (header[at] != ')') {
    size_t used = 0;
    array.shape.push_back(std::stoll(header.substr(at), &used));
    at += used;
    while (header[at] == ',' || header[at] == ' ') ++at;
  }
  array.data.assign(file.begin() + static_cast<ptrdiff_t>(10 + length), file.end());
  return array;
}

}  // namespace penstock
