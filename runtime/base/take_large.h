// Announces that memory of many megabytes is about to be taken for a picture. Where threads share a limit on such memory
// (large_memory.h), the calling thread waits here for its part; elsewhere nothing happens.
//
//   take_large(bytes);        // one comparison where bytes are below kLargeMemory
//   rgba.resize(bytes);
//
// The part is given back when the picture is done; the memory must be free again by then.
// Thread-safety: acts on the calling thread alone. Failure: Error(runtime) where the wait is given up.
#pragma once

#include <cstddef>

namespace penstock {

inline constexpr size_t kLargeMemory = size_t{16} << 20;

namespace large_memory_detail {
void take(size_t bytes);
}

inline void take_large(size_t bytes) {
  if (bytes >= kLargeMemory) large_memory_detail::take(bytes);
}

// Gives a vector's memory back to the system if it has become that large.
template <class Vector>
void let_large_go(Vector& vector) {
  if (vector.capacity() * sizeof(vector[0]) >= kLargeMemory) Vector().swap(vector);
}

}  // namespace penstock
