// XXH3-128 of a sample's record and image (base/hash.h), where the image lies on a GPU; host and GPU compile the
// same.
//
//   hash_block(memory, part, unit);      // sums of one lane over a block of 1,024 bytes
//   digest_image(memory, part, unit);    // from those: 16 bytes
//
// How: XXH3's eight accumulators take stripes of 64 bytes by adding, and are scrambled behind each block; so what a
//   block adds does not depend on what was before, and is a thread's each; what is left of the order is one scramble a
//   block.
// The input is the record and, right behind it, the image, which keeps no alignment; so words are put together by
// bytes.
// Source: xxHash 0.8 (Y. Collet), XXH3_128bits with the default secret and seed 0, for inputs of more than 240 bytes;
//   the secret is uploaded (hash_secret()), as the library has it.
// Safety: the record's length is bounded by the room that was reserved for it; lengths are the host's own numbers. A
//   part without a record is of a place whose image is not hashed here, and may be of any size: nothing is done.
// Thread-safety: different units write different bytes.
#pragma once

#include <cstdint>

#include "runtime/base/host_device.h"
#include "runtime/gpu/batch_layout.h"

namespace penstock {

PENSTOCK_HOST_DEVICE inline uint64_t little_word(const uint8_t* bytes) {
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) word |= uint64_t{bytes[i]} << (8 * i);
  return word;
}

PENSTOCK_HOST_DEVICE inline uint64_t hashed_word(const uint8_t* memory, const HashPart& part, uint64_t at) {
  if (at >= part.record_bytes) return little_word(memory + part.image_at + (at - part.record_bytes));
  uint64_t word = 0;
  for (uint64_t i = 0; i < 8; ++i) {
    const uint64_t byte = at + i < part.record_bytes ? memory[part.record_at + at + i]
                                                     : memory[part.image_at + (at + i - part.record_bytes)];
    word |= byte << (8 * i);
  }
  return word;
}

// What a stripe adds to accumulator `lane`, with the secret from `secret` on.
PENSTOCK_HOST_DEVICE inline uint64_t hash_stripe(const uint8_t* memory, const HashPart& part, uint64_t at,
                                                 uint32_t secret, uint32_t lane) {
  const uint64_t mine = hashed_word(memory, part, at + uint64_t{8} * lane);
  const uint64_t key = mine ^ little_word(memory + part.secret_at + secret + uint64_t{8} * lane);
  return hashed_word(memory, part, at + uint64_t{8} * (lane ^ 1)) + (key & 0xFFFFFFFF) * (key >> 32);
}

// Units: kHashLanes a block, and of blocks as many as the longest record would make.
PENSTOCK_HOST_DEVICE inline void hash_block(uint8_t* memory, const HashPart& part, uint32_t unit) {
  if (part.record_bytes == 0) return;
  const uint32_t block = unit / kHashLanes;
  const uint32_t lane = unit % kHashLanes;
  const uint64_t bytes = part.record_bytes + part.image_bytes;
  const uint64_t whole = (bytes - 1) / kHashBlockBytes;  // blocks behind which it is scrambled
  if (block > whole) return;
  const uint64_t begin = uint64_t{block} * kHashBlockBytes;
  const uint64_t stripes = (block < whole ? uint64_t{kHashBlockBytes} : bytes - 1 - begin) / kHashStripeBytes;
  uint64_t sum = 0;
  for (uint64_t s = 0; s < stripes; ++s) {
    sum += hash_stripe(memory, part, begin + s * kHashStripeBytes, static_cast<uint32_t>(8 * s), lane);
  }
  // The last stripe ends where the input does, over what was there before.
  if (block == whole) sum += hash_stripe(memory, part, bytes - kHashStripeBytes, kHashSecretBytes - 64 - 7, lane);
  reinterpret_cast<uint64_t*>(memory + part.sums_at)[uint64_t{block} * kHashLanes + lane] = sum;
}

PENSTOCK_HOST_DEVICE inline uint64_t folded_product(uint64_t a, uint64_t b) {
  const uint64_t low = (a & 0xFFFFFFFF) * (b & 0xFFFFFFFF);
  const uint64_t cross = (a >> 32) * (b & 0xFFFFFFFF) + (low >> 32);
  const uint64_t other = (a & 0xFFFFFFFF) * (b >> 32) + (cross & 0xFFFFFFFF);
  const uint64_t high = (a >> 32) * (b >> 32) + (cross >> 32) + (other >> 32);
  return high ^ (other << 32 | (low & 0xFFFFFFFF));
}

PENSTOCK_HOST_DEVICE inline uint64_t merged_sums(const uint64_t* sums, const uint8_t* secret, uint64_t start) {
  uint64_t merged = start;
  for (int i = 0; i < 4; ++i) {
    merged +=
        folded_product(sums[2 * i] ^ little_word(secret + 16 * i), sums[2 * i + 1] ^ little_word(secret + 16 * i + 8));
  }
  merged ^= merged >> 37;
  merged *= 0x165667919E3779F9U;
  return merged ^ merged >> 32;
}

PENSTOCK_HOST_DEVICE inline void digest_image(uint8_t* memory, const DigestPart& part, uint32_t) {
  constexpr uint64_t kPrime32 = 0x9E3779B1;
  constexpr uint64_t kPrime64[2] = {0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F};
  uint64_t sums[kHashLanes] = {0xC2B2AE3D,         kPrime64[0], kPrime64[1],        0x165667B19E3779F9,
                               0x85EBCA77C2B2AE63, 0x85EBCA77,  0x27D4EB2F165667C5, kPrime32};
  const HashPart& hash = part.hash;
  if (hash.record_bytes == 0) return;
  const uint8_t* const secret = memory + hash.secret_at;
  const uint64_t bytes = hash.record_bytes + hash.image_bytes;
  const uint64_t whole = (bytes - 1) / kHashBlockBytes;
  const auto* added = reinterpret_cast<const uint64_t*>(memory + hash.sums_at);
  for (uint64_t block = 0; block <= whole; ++block) {
    for (uint32_t lane = 0; lane < kHashLanes; ++lane) {
      sums[lane] += *added++;
      if (block == whole) continue;
      const uint64_t mixed =
          sums[lane] ^ sums[lane] >> 47 ^ little_word(secret + kHashSecretBytes - 64 + uint64_t{8} * lane);
      sums[lane] = mixed * kPrime32;
    }
  }
  auto* const to = reinterpret_cast<uint64_t*>(memory + part.to_at);
  to[0] = merged_sums(sums, secret + 11, bytes * kPrime64[0]);
  to[1] = merged_sums(sums, secret + kHashSecretBytes - 64 - 11, ~(bytes * kPrime64[1]));
}

}  // namespace penstock
