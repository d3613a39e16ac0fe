// What `arithmetic: fast` saves and what it costs in pixels: crops of large photos to 224 on one thread, exact and
// fast, with a side index and without, and libjpeg-turbo's decode of the whole photo beside them.
//
//   bench_fast --rounds 20 PHOTO.jpg ...          # tables, Markdown: baseline photos, then those that have no index
//
// By turns: each photo goes through all ways before the next, each with the same draws, timed by the thread's CPU
//   clock; a round has other draws. The median over rounds of each way's sum over the photos is what is printed.
// Pixels: the uint8 image of fast against that of exact.
#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "runtime/decode/jpeg/jpeg_decoder.h"
#include "runtime/decode/jpeg/jpeg_kernels.h"
#include "runtime/decode/jpeg/side_index.h"
#include "runtime/transforms/pipeline.h"

namespace penstock {
namespace {

int64_t cpu_ns() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

void require(const SampleStatus& status) {
  if (!status.ok()) throw std::runtime_error(status.reason);
}

struct Photo {
  std::string name;
  std::vector<char> bytes;
  ImageHeader header;
  SideIndex index;
  bool indexed = false;
  EncodedView view() const { return std::as_bytes(std::span(bytes)); }
};

Photo read_photo(const std::string& path) {
  Photo photo;
  photo.name = path;
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path);
  photo.bytes.assign(std::istreambuf_iterator<char>(in), {});
  require(read_header(photo.view(), DecodeLimits{}, photo.header));
  photo.indexed = build_side_index(photo.view(), {}, photo.index);
  return photo;
}

enum Method : size_t { exact_plain, exact_indexed, fast_plain, fast_indexed, whole_photo, ways };
constexpr std::array<const char*, ways> kMethodNames = {"exact", "exact, indexed", "fast", "fast, indexed",
                                                        "libjpeg-turbo, the whole photo, no resize"};

struct Differences {
  double mean = 0;
  int largest = 0;
  double psnr = 0;
};

Differences compare(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  Differences d;
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const int difference = std::abs(a[i] - b[i]);
    d.mean += difference;
    squares += difference * difference;
    d.largest = std::max(d.largest, difference);
  }
  const auto n = static_cast<double>(a.size());
  d.mean /= n;
  d.psnr = squares == 0 ? 99 : 10 * std::log10(255 * 255 * n / squares);
  return d;
}

class Measurement {
 public:
  explicit Measurement(const std::vector<TransformSpec>& specs)
      : exact_(specs), fast_(specs, {Arithmetic::fast}), scratch_(DecodeLimits{}), out_(pixels()), wanted_(pixels()) {}

  // One photo by every way.
  void run(const Photo& photo, const DrawKey& key, std::array<int64_t, ways>& times) {
    const Draws draws = exact_.draw(key, photo.header);
    const SideIndex* const index = photo.indexed ? &photo.index : nullptr;
    times[exact_plain] += apply(exact_, photo, nullptr, draws, wanted_);
    times[fast_plain] += apply(fast_, photo, nullptr, draws, out_);
    found_.push_back(compare(out_, wanted_));
    times[exact_indexed] += apply(exact_, photo, index, draws, out_);
    if (out_ != wanted_) throw std::runtime_error(photo.name + ": the index gives other pixels");
    times[fast_indexed] += apply(fast_, photo, index, draws, out_);
    const int64_t begun = cpu_ns();
    PixelView view;
    require(library_.decode_reference(photo.view(), photo.header, {0, 0, photo.header.width, photo.header.height},
                                      storage_, view));
    times[whole_photo] += cpu_ns() - begun;
  }
  const std::vector<Differences>& found() const { return found_; }

 private:
  size_t pixels() const {
    return static_cast<size_t>(exact_.out_width()) * static_cast<size_t>(exact_.out_height()) * 3;
  }
  int64_t apply(const Pipeline& pipeline, const Photo& photo, const SideIndex* index, const Draws& draws,
                std::vector<uint8_t>& out) {
    const int64_t begun = cpu_ns();
    require(pipeline.apply(ImageInput{photo.view(), {}, index}, photo.header, draws, out, scratch_, {}));
    return cpu_ns() - begun;
  }

  Pipeline exact_;
  Pipeline fast_;
  Scratch scratch_;
  JpegDecoder library_{DecodeLimits{}, DecoderOptions{.own_jpeg = false}};
  PixelBuffer storage_;
  std::vector<uint8_t> out_;
  std::vector<uint8_t> wanted_;
  std::vector<Differences> found_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(const std::vector<Photo>& photos, int rounds, const char* name, const std::vector<TransformSpec>& specs) {
  Measurement measurement(specs);
  std::array<std::vector<double>, ways> all;
  for (int round = 0; round < rounds; ++round) {
    std::array<int64_t, ways> times{};
    for (size_t i = 0; i < photos.size(); ++i)
      measurement.run(photos[i], {1, static_cast<uint32_t>(round), i, 0}, times);
    for (size_t method = 0; method < ways; ++method)
      all[method].push_back(1e-6 * static_cast<double>(times[method]) / static_cast<double>(photos.size()));
  }
  const double yardstick = median(all[exact_plain]);
  std::printf("\n%s\n\n| way | CPU ms a photo | against exact |\n|---|---|---|\n", name);
  for (size_t method = 0; method < ways; ++method) {
    const double ms = median(all[method]);
    std::printf("| %s | %.2f | %.2fx |\n", kMethodNames[method], ms, yardstick / ms);
  }
  double mean = 0;
  int largest = 0;
  std::vector<double> psnr;
  std::vector<double> largests;
  double worst_mean = 0;
  for (const Differences& d : measurement.found()) {
    mean += d.mean / static_cast<double>(measurement.found().size());
    worst_mean = std::max(worst_mean, d.mean);
    largest = std::max(largest, d.largest);
    largests.push_back(d.largest);
    psnr.push_back(d.psnr);
  }
  std::printf(
      "\nfast against exact, %zu images: mean difference %.2f of 255 (worst image %.2f), largest %d (median of "
      "images %.0f), PSNR median %.1f dB, lowest %.1f dB\n",
      psnr.size(), mean, worst_mean, largest, median(largests), median(psnr),
      *std::min_element(psnr.begin(), psnr.end()));
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  using namespace penstock;
  int rounds = 11;
  std::vector<Photo> photos;
  try {
    for (int i = 1; i < argc; ++i) {
      if (std::string(argv[i]) == "--rounds" && i + 1 < argc) {
        rounds = std::atoi(argv[++i]);
      } else {
        photos.push_back(read_photo(argv[i]));
      }
    }
    if (photos.empty() || rounds < 1) throw std::runtime_error("say --rounds N and photos");
    const auto others = std::stable_partition(photos.begin(), photos.end(), [](const Photo& p) { return p.indexed; });
    for (const auto& [kind, group] :
         {std::pair("baseline", std::vector<Photo>(photos.begin(), others)),
          std::pair("other (progressive, ...)", std::vector<Photo>(others, photos.end()))}) {
      if (group.empty()) continue;
      double megapixels = 0;
      for (const Photo& photo : group)
        megapixels += 1e-6 * photo.header.width * photo.header.height / static_cast<double>(group.size());
      std::printf("\n%zu %s photos of %.1f MP on average, %d rounds, vectors %s\n", group.size(), kind, megapixels,
                  rounds, jpeg_kernel_target());
      run(group, rounds, "RandomResizedCrop(224)", {{"RandomResizedCrop", {{"size", int64_t{224}}}}});
      run(group, rounds, "Resize(256), CenterCrop(224)",
          {{"Resize", {{"size", int64_t{256}}}}, {"CenterCrop", {{"size", int64_t{224}}}}});
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_fast: %s\n", error.what());
    return 1;
  }
  return 0;
}
