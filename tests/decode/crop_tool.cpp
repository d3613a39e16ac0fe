// Decodes and resamples as told on standard input; pillow_exact_test.py compares the answers with Pillow's.
//
// A request is a line of fields separated by tabs:
//   decode PATH X Y W H                                          the pixels of a box
//   resize PATH X Y W H OUT_W OUT_H FILTER WX WY WW WH           crop to the box, resize, cut out the window
//   planar PATH X Y W H OUT_W OUT_H FILTER WX WY WW WH FLIP      the same as planes; FLIP: 0, 1 (h), 2 (v) or 3
//   header PATH
// Each is answered by a line: "ok HASH" (XXH3-64 of the bytes, hexadecimal), or "bad REASON". `--raw` as first argument
// sends the pixels themselves after the line. The last file is kept, so that many boxes of one file cost one read.
#define XXH_INLINE_ALL
#include <xxhash.h>

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
#include "runtime/pixels/resample.h"

namespace {

using namespace penstock;

struct Request {
  std::string verb;
  std::string path;
  Box box;
  int out_w = 0, out_h = 0, filter = 0;
  Box window;
  int flip = 0;
};

bool parse(const std::string& line, Request& r) {
  std::istringstream in(line);
  if (!std::getline(in, r.verb, '\t') || !std::getline(in, r.path, '\t')) return false;
  if (r.verb == "header") return true;
  in >> r.box.x >> r.box.y >> r.box.width >> r.box.height;
  if (r.verb == "decode") return !in.fail();
  in >> r.out_w >> r.out_h >> r.filter >> r.window.x >> r.window.y >> r.window.width >> r.window.height;
  if (r.verb == "planar") in >> r.flip;
  return !in.fail();
}

class Tool {
 public:
  // The bytes of the answer, or a bad status.
  SampleStatus answer(const Request& r, std::vector<uint8_t>& out) {
    out.clear();
    if (r.path != path_) {
      path_ = r.path;
      std::ifstream file(path_, std::ios::binary);
      bytes_.assign(std::istreambuf_iterator<char>(file), {});
    }
    const EncodedView view(reinterpret_cast<const std::byte*>(bytes_.data()), bytes_.size());
    ImageHeader header;
    SampleStatus status = read_header(view, limits_, header);
    if (!status.ok()) return status;
    if (r.verb == "header") {
      const std::string text = std::to_string(header.width) + "x" + std::to_string(header.height);
      out.assign(text.begin(), text.end());
      return status;
    }
    PixelView pixels;
    if (r.verb == "decode") {
      status = decoder_.decode(view, header, r.box, storage_, pixels);
      if (status.ok()) append(pixels, out);
      return status;
    }
    const ResampleGeometry g{r.box.width, r.box.height, r.out_w, r.out_h, static_cast<Filter>(r.filter)};
    const Box need = resampler_.source_window(g, r.window);
    const Box absolute{need.x + r.box.x, need.y + r.box.y, need.width, need.height};
    status = decoder_.decode(view, header, absolute, storage_, pixels);
    if (!status.ok()) return status;
    if (r.verb == "planar") {
      out.resize(static_cast<size_t>(r.window.width) * static_cast<size_t>(r.window.height) * 3);
      resampler_.run_planar(g, pixels, need, r.window, (r.flip & 1) != 0, (r.flip & 2) != 0, out.data());
    } else {
      resampler_.run(g, pixels, need, r.window, result_);
      append({result_.row(0), result_.width(), result_.height(), result_.row_bytes()}, out);
    }
    return status;
  }

 private:
  static void append(const PixelView& pixels, std::vector<uint8_t>& out) {
    for (int y = 0; y < pixels.height; ++y) {
      out.insert(out.end(), pixels.row(y), pixels.row(y) + static_cast<size_t>(pixels.width) * 3);
    }
  }

  DecodeLimits limits_;
  Decoder decoder_{limits_};
  Resampler resampler_;
  PixelBuffer storage_, result_;
  std::string path_;
  std::vector<char> bytes_;
};

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  const bool raw = argc > 1 && std::strcmp(argv[1], "--raw") == 0;
  Tool tool;
  std::string line;
  std::vector<uint8_t> bytes;
  while (std::getline(std::cin, line)) {
    Request request;
    if (!parse(line, request)) {
      std::fprintf(stderr, "crop_tool: cannot read '%s'\n", line.c_str());
      return 2;
    }
    try {
      const SampleStatus status = tool.answer(request, bytes);
      if (!status.ok()) {
        std::printf("bad %s\n", status.reason.c_str());
      } else if (raw) {
        std::printf("ok %zu\n", bytes.size());
        std::fwrite(bytes.data(), 1, bytes.size(), stdout);
      } else {
        std::printf("ok %016" PRIx64 "\n", static_cast<uint64_t>(XXH3_64bits(bytes.data(), bytes.size())));
      }
    } catch (const Error& error) {
      std::printf("error %s\n", error.message().c_str());
    }
  }
  return 0;
}
