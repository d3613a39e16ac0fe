// Decodes whole files and says what came of it; formats_test.py and odd_files_test.py ask.
//
//   PATH [exif] [max_pixels=N] [box=X,Y,W,H]     tab-separated, a request a line
//   answer: ok WIDTH HEIGHT HASH MICROSECONDS KILOBYTES      or      bad MICROSECONDS KILOBYTES REASON
//
// MICROSECONDS: CPU time. KILOBYTES: how far the process's resident memory rose above what it was before this file was
// read (VmHWM, reset).
#include <malloc.h>
#include <time.h>
#include <xxhash.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/decode/decoder.h"

namespace {

using namespace penstock;

// Kilobytes of a line of /proc/self/status.
int64_t status_kb(const char* name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name, 0) == 0) return std::stoll(line.substr(std::strlen(name) + 1));
  }
  return 0;
}

void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

struct Request {
  std::string path;
  HeaderOptions options;
  DecodeLimits limits;
  Box box;
};

bool parse(const std::string& line, Request& r) {
  std::istringstream in(line);
  if (!std::getline(in, r.path, '\t')) return false;
  for (std::string word; std::getline(in, word, '\t');) {
    if (word == "exif") {
      r.options.exif_orientation = true;
    } else if (word.rfind("max_pixels=", 0) == 0) {
      r.limits.max_pixels = std::stoll(word.substr(11));
    } else if (std::sscanf(word.c_str(), "box=%d,%d,%d,%d", &r.box.x, &r.box.y, &r.box.width, &r.box.height) != 4) {
      return false;
    }
  }
  return true;
}

// The time of this thread, which decodes: other programs do not slow it.
int64_t cpu_us() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000 + t.tv_nsec / 1000;
}

void answer(const Request& r) {
  // Fresh ones for every file, so that each pays for its own memory.
  Decoder decoder(r.limits);
  PixelBuffer storage;
  std::ifstream file(r.path, std::ios::binary);
  const std::vector<char> text{std::istreambuf_iterator<char>(file), {}};
  const EncodedView bytes(reinterpret_cast<const std::byte*>(text.data()), text.size());
  malloc_trim(0);
  reset_peak();
  const int64_t before = status_kb("VmRSS:");
  const int64_t start_us = cpu_us();
  ImageHeader header;
  PixelView pixels;
  SampleStatus sample_status = read_header(bytes, r.limits, header, r.options);
  const Box box = r.box.width > 0 ? r.box : Box{0, 0, header.width, header.height};
  if (sample_status.ok()) sample_status = decoder.decode(bytes, header, box, storage, pixels);
  const int64_t took_us = cpu_us() - start_us;
  const int64_t risen = std::max<int64_t>(0, status_kb("VmHWM:") - before);
  if (!sample_status.ok()) {
    std::printf("bad %" PRId64 " %" PRId64 " %s\n", took_us, risen, sample_status.reason.c_str());
    return;
  }
  XXH3_state_t* const state = XXH3_createState();
  XXH3_64bits_reset(state);
  for (int y = 0; y < pixels.height; ++y)
    XXH3_64bits_update(state, pixels.row(y), static_cast<size_t>(pixels.width) * 3);
  std::printf("ok %d %d %016" PRIx64 " %" PRId64 " %" PRId64 "\n", header.width, header.height,
              static_cast<uint64_t>(XXH3_64bits_digest(state)), took_us, risen);
  XXH3_freeState(state);
}

// Sanitizers take time and memory of their own.
bool is_sanitized() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--sanitized") == 0) return is_sanitized() ? 0 : 1;
  if (argc == 3 && std::strcmp(argv[1], "--has") == 0) {  // is the format part of this build?
    return decoder_versions().find(std::string("lib") + argv[2]) == std::string::npos ? 1 : 0;
  }
  mallopt(M_MMAP_THRESHOLD, 1 << 16);  // what was given back does not hide what the next file takes
  for (std::string line; std::getline(std::cin, line);) {
    Request request;
    if (!parse(line, request)) {
      std::fprintf(stderr, "format_tool: cannot read '%s'\n", line.c_str());
      return 2;
    }
    try {
      answer(request);
    } catch (const penstock::Error& error) {
      std::printf("error %s\n", error.message().c_str());
    }
    std::fflush(stdout);
  }
  return 0;
}
