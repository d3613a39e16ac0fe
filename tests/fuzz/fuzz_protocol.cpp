// What ranks, clients and files of states say to each other: control messages, envelopes of chunks, client messages, states.
// Those with a checksum get the right one, so that what lies behind it is reached; odd kinds have theirs as they are.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/crc32c.h"
#include "runtime/base/error.h"
#include "runtime/client/state_file.h"
#include "runtime/protocol/chunk.h"
#include "runtime/protocol/client_protocol.h"
#include "runtime/protocol/messages.h"

using namespace penstock;

namespace {

Message sealed(std::span<const std::byte> body) {
  Message bytes(body.begin(), body.end());
  const uint32_t crc = crc32c(bytes.data(), bytes.size());
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(crc >> (8 * i)));
  return bytes;
}

void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::span body(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  const Message bytes = (data[0] & 1) == 0 ? sealed(body) : Message(body.begin(), body.end());
  try {
    switch (data[0] >> 1 & 3) {
      case 0: {  // what was understood is understood once more, and says the same
        const Message again = encode(decode(bytes));
        require(again == encode(decode(again)));
        break;
      }
      case 1: {
        ChunkHeader header;
        std::vector<SampleRecord> records;
        decode_envelope(bytes, header, records);
        const Message again = encode_envelope(header, records);
        decode_envelope(again, header, records);
        require(again == encode_envelope(header, records));
        break;
      }
      case 2: {
        const Message again = encode_client(decode_client(body));
        require(again == encode_client(decode_client(again)));
        break;
      }
      default: {
        const std::string text(reinterpret_cast<const char*>(body.data()), body.size());
        char head[64];
        std::snprintf(head, sizeof head, "penstock state 1\n%08x %zu\n", crc32c(body.data(), body.size()), body.size());
        (void)state_in((data[0] & 1) == 0 ? head + text : text, "fuzzed");
      }
    }
  } catch (const Error&) {
  }
  return 0;
}
