// The decoder by nvJPEG, without a GPU: a library of the test's own (fake_nvjpeg.c) that checks what it is told. What
// is not shown here is what nvJPEG makes of it, and CUDA's calls, which nvjpeg_on_gpu.h gives it.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/gpu/nvjpeg/nvjpeg_decoder.h"
#include "tests/decode/jpeg_files.h"
#include "tests/gpu/cuda/fake_nvjpeg.h"

namespace penstock {
namespace {

const std::string kFake = std::string(FAKE_NVJPEG_FOLDER) + "/fake_nvjpeg.so";
const std::string kOld = std::string(FAKE_NVJPEG_FOLDER) + "/old_nvjpeg.so";

enum class Method : int { engines = 0, kernels = 1, alone = 2 };

// What the library of the test writes.
uint8_t fake_pixel(int x, int y, int channel, Method method) {
  return static_cast<uint8_t>(4 * x + 8 * y + 64 * channel + static_cast<int>(method));
}

// The library, with nothing told, and a runtime whose GPU is this machine's memory.
class Bench {
 public:
  Bench() {
    std::string why;
    REQUIRE_MESSAGE(load_nvjpeg(kFake, library, why), why);
    void* const handle = ::dlopen(kFake.c_str(), RTLD_NOW);
    REQUIRE(handle != nullptr);
    fake = reinterpret_cast<FakeNvjpeg* (*)()>(::dlsym(handle, "fake_nvjpeg"))();
    *fake = {};
    fake->most_engine_width = 1000;
  }
  ~Bench() {
    decoder.reset();
    CHECK(fake->live == 0);
    CHECK(fake->wrong == 0);
    CHECK(blocks.empty());
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  NvjpegDecoder& open(const PictureDecoderOptions& options = {}) {
    NvjpegRuntime runtime;
    runtime.allocate = [this](size_t bytes) {
      void* const block = std::malloc(bytes);
      blocks.insert(block);
      return block;
    };
    runtime.release = [this](void* block) {
      CHECK(blocks.erase(block) == 1);
      std::free(block);
    };
    runtime.allocate_pinned = runtime.allocate;
    runtime.release_pinned = runtime.release;
    runtime.wait = [this] {
      ++waits;
      fake->in_flight = 0;
    };
    decoder = std::make_unique<NvjpegDecoder>(library, runtime, nullptr, options);
    return *decoder;
  }

  // Pictures one behind the other in memory, with bytes between them that nobody may touch.
  void add(const penstock_test::JpegSpec& spec, const GpuBox& region) {
    files.push_back(penstock_test::make_jpeg(spec));
    LibraryPicture picture{.width = spec.width, .height = spec.height, .region = region, .to_at = memory.size() + kGap};
    picture.place = pictures.size();
    memory.resize(picture.to_at +
                      size_t{3} * static_cast<size_t>(std::max(region.width, 0)) *
                          static_cast<size_t>(std::max(region.height, 0)) +
                      kGap,
                  kUntouched);
    pictures.push_back(picture);
  }
  void add_whole(const penstock_test::JpegSpec& spec) { add(spec, {0, 0, spec.width, spec.height}); }

  void decode() {
    for (size_t i = 0; i < files.size(); ++i) {
      pictures[i].file = files[i].data();
      pictures[i].bytes = files[i].size();
      pictures[i].refusal = Refusal::none;
    }
    std::fill(memory.begin(), memory.end(), kUntouched);
    decoder->decode(memory.data(), pictures);
  }
  bool made(size_t number, Method method) const {
    const LibraryPicture& picture = pictures[number];
    const GpuBox& r = picture.region;
    const auto* from = reinterpret_cast<const uint8_t*>(memory.data() + picture.to_at);
    for (int c = 0; c < 3; ++c) {
      for (int y = r.y; y < r.y + r.height; ++y) {
        for (int x = r.x; x < r.x + r.width; ++x) {
          if (*from++ != fake_pixel(x, y, c, method)) return false;
        }
      }
    }
    return picture.refusal == Refusal::none && edges_untouched(picture);
  }
  bool refused(size_t number, Refusal refusal) const { return pictures[number].refusal == refusal; }
  bool untouched(size_t number) const {
    const LibraryPicture& picture = pictures[number];
    const auto* const begin = memory.data() + picture.to_at;
    return std::all_of(begin, begin + bytes_of(picture), [](std::byte b) { return b == kUntouched; });
  }

  static constexpr size_t kGap = 64;
  static constexpr std::byte kUntouched{0xAB};
  NvjpegLibrary library;
  FakeNvjpeg* fake = nullptr;
  std::unique_ptr<NvjpegDecoder> decoder;
  std::set<void*> blocks;
  int waits = 0;
  std::vector<std::vector<std::byte>> files;
  std::vector<LibraryPicture> pictures;
  std::vector<std::byte> memory;

 private:
  static size_t bytes_of(const LibraryPicture& picture) {
    return size_t{3} * static_cast<size_t>(picture.region.width) * static_cast<size_t>(picture.region.height);
  }
  bool edges_untouched(const LibraryPicture& picture) const {
    const auto* const begin = memory.data() + picture.to_at;
    const auto* const end = begin + bytes_of(picture);
    const auto same = [](std::byte b) { return b == kUntouched; };
    return std::all_of(begin - kGap, begin, same) && std::all_of(end, end + kGap, same);
  }
};

TEST_CASE("engines decode regions, all in one batch; what they do not take goes alone") {
  Bench bench;
  bench.fake->engines = 7;
  bench.fake->most_engine_width = 100;
  NvjpegDecoder& decoder = bench.open();
  CHECK(decoder.facts().name == "nvJPEG 13.98.7");
  CHECK(decoder.facts().engines == 7);
  CHECK(decoder.facts().cuts_regions);
  bench.add({.width = 80, .height = 60}, {16, 16, 32, 24});
  bench.add_whole({.width = 50, .height = 40});
  bench.add({.width = 200, .height = 90}, {8, 0, 64, 90});
  bench.add({.width = 180, .height = 70}, {0, 8, 180, 62});
  bench.decode();
  CHECK(bench.made(0, Method::engines));
  CHECK(bench.made(1, Method::engines));
  CHECK(bench.made(2, Method::alone));
  CHECK(bench.made(3, Method::alone));
  CHECK(bench.fake->engine_batches == 1);
  CHECK(bench.waits == 2);
  // The same decoder again, with other regions and fewer pictures.
  bench.files.resize(2);
  bench.pictures.resize(2);
  bench.pictures[1].region = {10, 10, 20, 10};
  bench.decode();
  CHECK(bench.made(0, Method::engines));
  CHECK(bench.made(1, Method::engines));
  CHECK(bench.fake->engine_pictures == 4);
}

TEST_CASE("without engines a batch is one of whole pictures") {
  Bench bench;
  NvjpegDecoder& decoder = bench.open();
  CHECK(decoder.facts().engines == 0);
  CHECK(!decoder.facts().cuts_regions);
  for (int i = 0; i < 60; ++i) bench.add_whole({.width = 20 + i, .height = 90 - i});
  bench.add({.width = 64, .height = 64}, {16, 16, 16, 16});  // nobody plans that; it is decoded all the same
  bench.decode();
  for (size_t i = 0; i < 60; ++i) CHECK(bench.made(i, Method::kernels));
  CHECK(bench.made(60, Method::alone));
  CHECK(bench.fake->kernel_batches == 1);
  CHECK(bench.fake->kernel_pictures == 60);
}

TEST_CASE("engines are left alone where the library has not the functions for them") {
  Bench bench;
  bench.fake->engines = 7;
  const auto supported = std::exchange(bench.library.DecodeBatchedSupportedEx, nullptr);
  CHECK(bench.open().facts().engines == 0);
  bench.library.DecodeBatchedSupportedEx = supported;
  bench.library.GetHardwareDecoderInfo = nullptr;
  CHECK(bench.open().facts().engines == 1);  // at least
}

TEST_CASE("the flag for interpolation is set where it is asked for") {
  Bench bench;
  (void)bench.open({.chroma = ChromaUpsampling::interpolated});
  CHECK(bench.fake->flags == 32);
  (void)bench.open({.chroma = ChromaUpsampling::nearest});
  CHECK(bench.fake->flags == 0);
  bench.fake->fail_interpolation = NVJPEG_STATUS_INVALID_PARAMETER;
  CHECK_THROWS_WITH_AS(bench.open({.chroma = ChromaUpsampling::interpolated}),
                       doctest::Contains("making a handle: invalid parameter"), Error);
  CHECK_NOTHROW(bench.open({.chroma = ChromaUpsampling::nearest}));
}

TEST_CASE("of a batch with a bad file only that one is refused") {
  for (const unsigned engines : {0U, 2U}) {
    Bench bench;
    bench.fake->engines = engines;
    NvjpegDecoder& decoder = bench.open();
    for (int i = 0; i < 9; ++i) bench.add_whole({.width = 30 + i, .height = 40});
    bench.fake->bad_end = 0xEE;
    bench.files[4].back() = std::byte{0xEE};
    bench.decode();
    for (size_t i = 0; i < 9; ++i) {
      if (i != 4) CHECK(bench.made(i, Method::alone));
    }
    CHECK(bench.refused(4, Refusal::file));
    CHECK(decoder.reason(Refusal::file) == "decoding a picture: bad JPEG");
    CHECK(decoder.reason(Refusal::library).empty());
    // The next batch is one again.
    bench.fake->bad_end = 0;
    bench.decode();
    for (size_t i = 0; i < 9; ++i) CHECK(bench.made(i, engines > 0 ? Method::engines : Method::kernels));
  }
}

TEST_CASE("a picture whose headers say something else is never decoded: it would be written beyond its place") {
  Bench bench;
  bench.fake->engines = 2;
  NvjpegDecoder& decoder = bench.open();
  bench.add_whole({.width = 40, .height = 30});
  bench.add_whole({.width = 40, .height = 30});
  bench.add_whole({.width = 40, .height = 30, .grey = true});
  bench.add_whole({.width = 40, .height = 30});
  bench.files[0] = penstock_test::make_jpeg({.width = 41, .height = 30});
  bench.files[1] = penstock_test::make_jpeg({.width = 40, .height = 900});
  bench.files[3].resize(5);
  bench.add({.width = 40, .height = 30}, {0, 0, 41, 30});
  bench.add({.width = 40, .height = 30}, {-1, 0, 10, 10});
  bench.add({.width = 40, .height = 30}, {8, 8, 0, 4});
  bench.add({.width = 40, .height = 30}, {0, 24, 8, 8});
  bench.add_whole({.width = 40, .height = 30});
  bench.decode();
  for (size_t i = 0; i + 1 < bench.pictures.size(); ++i) {
    CAPTURE(i);
    CHECK(bench.refused(i, Refusal::file));
    CHECK(bench.untouched(i));
  }
  CHECK(bench.made(8, Method::engines));
  CHECK(decoder.reason(Refusal::file).starts_with("reading a picture's headers: "));
}

TEST_CASE("the library gets no more memory than it may have") {
  Bench bench;
  NvjpegDecoder& decoder = bench.open({.memory_bytes = 1000});
  bench.add_whole({.width = 40, .height = 30});
  bench.add_whole({.width = 44, .height = 30});
  bench.fake->picture_bytes = 1000;
  bench.decode();
  CHECK(bench.made(0, Method::kernels));
  bench.fake->picture_bytes = 1001;
  bench.decode();
  CHECK(bench.refused(0, Refusal::memory));
  CHECK(bench.refused(1, Refusal::memory));
  CHECK(decoder.reason(Refusal::memory) == "decoding a picture: allocator failure");
  CHECK(decoder.reason(Refusal::library).empty());
  bench.fake->picture_bytes = 600;
  bench.decode();
  CHECK(bench.made(1, Method::kernels));
}

TEST_CASE("a library that fails refuses all, from then on") {
  for (const nvjpegStatus_t status : {NVJPEG_STATUS_EXECUTION_FAILED, NVJPEG_STATUS_INTERNAL_ERROR,
                                      NVJPEG_STATUS_ARCH_MISMATCH, NVJPEG_STATUS_NOT_INITIALIZED}) {
    for (const bool alone : {false, true}) {
      Bench bench;
      bench.fake->engines = 1;
      bench.fake->most_engine_width = alone ? 0 : 1000;
      (alone ? bench.fake->fail_one : bench.fake->fail_batch) = status;
      NvjpegDecoder& decoder = bench.open();
      for (int i = 0; i < 4; ++i) bench.add_whole({.width = 30 + i, .height = 40});
      for (int turn = 0; turn < 2; ++turn) {
        bench.decode();
        for (size_t i = 0; i < 4; ++i) CHECK(bench.refused(i, Refusal::library));
        CHECK(decoder.reason(Refusal::library) ==
              (alone ? "decoding a picture: " : "decoding a batch: ") + std::string(text_of(status)));
        bench.fake->fail_one = 0;  // too late
      }
      CHECK(bench.fake->engine_batches + bench.fake->alone == 0);
    }
  }
}

TEST_CASE("a GPU that cannot have a decoder says why, and leaves nothing behind") {
  Bench bench;
  bench.fake->fail_create = NVJPEG_STATUS_ALLOCATOR_FAILURE;
  CHECK_THROWS_WITH_AS(bench.open(), doctest::Contains("nvJPEG 13.98.7 ("), Error);
  CHECK_THROWS_WITH_AS(bench.open(), doctest::Contains("making a handle: allocator failure"), Error);
}

TEST_CASE("the library is loaded by name; one that is missing or too old is told by its file") {
  NvjpegLibrary library;
  std::string why;
  CHECK(load_nvjpeg(kFake, library, why));
  CHECK(library.name() == "nvJPEG 13.98.7");
  CHECK(library.file == kFake);
  CHECK(!load_nvjpeg(kOld, library, why));
  CHECK(why == kOld + " has no nvjpegCreateExV2: it is too old");
  CHECK(!load_nvjpeg("/nowhere/libnvjpeg.so.13", library, why));
  CHECK(why.find("/nowhere/libnvjpeg.so.13") != std::string::npos);
}

TEST_CASE("where it is looked for: the file that is named; else the system's, then the environment's packages") {
  REQUIRE(::setenv("PENSTOCK_NVJPEG", "/some/libnvjpeg.so", 1) == 0);
  CHECK(nvjpeg_candidates() == std::vector<std::string>{"/some/libnvjpeg.so"});
  CHECK_THROWS_WITH_AS(nvjpeg_library(), doctest::Contains("nvJPEG cannot be loaded: /some/libnvjpeg.so"), Error);
  REQUIRE(::unsetenv("PENSTOCK_NVJPEG") == 0);
  const std::filesystem::path root = std::filesystem::path(FAKE_NVJPEG_FOLDER) / "environment";
  const std::filesystem::path packages = root / "lib/python3.11/site-packages/nvidia";
  std::filesystem::create_directories(packages / "cu13/lib");
  std::ofstream(packages / "cu13/lib/libnvjpeg.so.13") << "no library";
  REQUIRE(::setenv("VIRTUAL_ENV", root.c_str(), 1) == 0);
  const std::vector<std::string> files = nvjpeg_candidates();
  REQUIRE(::unsetenv("VIRTUAL_ENV") == 0);
  REQUIRE(files.size() >= 3);
  CHECK(files[0] == "libnvjpeg.so.13");
  CHECK(files[1] == "libnvjpeg.so.12");
  CHECK(files[2] == (packages / "cu13/lib/libnvjpeg.so.13").string());
  // Beside the package that this code lies in, which is the test's folder here.
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path beside = own.parent_path() / "nvidia/cu13/lib";
  std::filesystem::create_directories(beside);
  std::ofstream(beside / "libnvjpeg.so.13") << "no library";
  const std::vector<std::string> more = nvjpeg_candidates();
  std::filesystem::remove_all(own.parent_path() / "nvidia");
  CHECK(std::find(more.begin(), more.end(), (beside / "libnvjpeg.so.13").string()) != more.end());
  // Who names the file gets that one.
  REQUIRE(::setenv("PENSTOCK_NVJPEG", kFake.c_str(), 1) == 0);
  CHECK(nvjpeg_library().file == kFake);
  REQUIRE(::unsetenv("PENSTOCK_NVJPEG") == 0);
}

}  // namespace
}  // namespace penstock
