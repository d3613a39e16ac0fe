// CRC-32C (Castagnoli, reflected polynomial 0x82F63B78, RFC 3720 appendix B.4): guards headers and payloads on the
// wire.
//
//   crc32c(bytes.data(), bytes.size());            // "123456789" gives 0xe3069283
//   crc32c(tail, n, crc32c(head, m));              // continued
//
// Uses the SSE4.2 instruction where the CPU has it (chosen once at run time), a table elsewhere; equal by test.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {

uint32_t crc32c(const void* data, size_t size, uint32_t crc = 0) noexcept;
uint32_t crc32c_portable(const void* data, size_t size, uint32_t crc = 0) noexcept;  // the reference

}  // namespace penstock
