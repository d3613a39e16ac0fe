#include "sampler/permutation.h"

#include <limits>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/base/error.h"

namespace penstock {

template <class Index>
void randperm_forward(std::span<Index> out, TorchGenerator& generator) {
  const uint64_t size = out.size();
  for (uint64_t i = 0; i < size; ++i) out[i] = static_cast<Index>(i);
  for (uint64_t i = 0; i + 1 < size; ++i) {
    const uint64_t left = size - i;
    const uint32_t draw = generator.random();
    // The same remainder either way; a 32-bit division costs half as much, and n divisions are most of the time.
    const uint64_t step =
        left <= std::numeric_limits<uint32_t>::max() ? draw % static_cast<uint32_t>(left) : uint64_t{draw};
    std::swap(out[i], out[i + step]);
  }
}

template <class Index>
void randperm_inside_out(std::span<Index> out, TorchGenerator& generator) {
  const uint64_t size = out.size();
  for (uint64_t i = 0; i < size; ++i) {
    const uint64_t place = generator.random64() % (i + 1);
    out[i] = out[place];  // itself where place == i; the next line then sets it
    out[place] = static_cast<Index>(i);
  }
}

template void randperm_forward<uint32_t>(std::span<uint32_t>, TorchGenerator&);
template void randperm_forward<uint64_t>(std::span<uint64_t>, TorchGenerator&);
template void randperm_inside_out<uint32_t>(std::span<uint32_t>, TorchGenerator&);
template void randperm_inside_out<uint64_t>(std::span<uint64_t>, TorchGenerator&);

namespace {

void check_size(int64_t size) {
  if (size < 0) {
    throw Error(ErrorKind::usage, "a permutation of " + std::to_string(size) + " samples was asked for",
                "give the size of the dataset, 0 or more");
  }
}

[[noreturn]] void throw_no_memory(int64_t size, size_t bytes_each) {
  throw Error(ErrorKind::runtime,
              "no memory for the shuffled order of " + std::to_string(size) + " samples (" +
                  std::to_string(bytes_each) + " bytes each)",
              "free memory, or set sampler.shuffle: false");
}

template <class Index>
std::shared_ptr<const std::vector<Index>> shuffled_buffer(int64_t size, uint64_t seed, RandpermRule rule) {
  std::shared_ptr<std::vector<Index>> order;
  try {
    order = std::make_shared<std::vector<Index>>(static_cast<size_t>(size));
  } catch (const std::bad_alloc&) {
    throw_no_memory(size, sizeof(Index));
  } catch (const std::length_error&) {
    throw_no_memory(size, sizeof(Index));
  }
  TorchGenerator generator(seed);
  if (size < kRandpermLargeFrom || rule == RandpermRule::torch_1) {
    randperm_forward(std::span<Index>(*order), generator);
  } else {
    randperm_inside_out(std::span<Index>(*order), generator);
  }
  return order;
}

}  // namespace

Permutation Permutation::identity(int64_t size) {
  check_size(size);
  Permutation result;
  result.size_ = size;
  return result;
}

Permutation Permutation::shuffled(int64_t size, uint64_t seed, RandpermRule rule) {
  check_size(size);
  Permutation result;
  result.size_ = size;
  if (size <= int64_t{1} << 32) {  // indices up to 2^32 - 1
    result.narrow_ = shuffled_buffer<uint32_t>(size, seed, rule);
  } else {
    result.wide_ = shuffled_buffer<uint64_t>(size, seed, rule);
  }
  return result;
}

}  // namespace penstock
