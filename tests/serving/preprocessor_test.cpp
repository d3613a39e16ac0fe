// Images without a dataset: equal to what the DataLoader gives, byte for byte; statuses; draws; threads; the identity
// of a pipeline.
#include "runtime/serving/preprocessor.h"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>

#include "runtime/base/file_system.h"
#include "runtime/client/data_loader.h"
#include "runtime/decode/decoder.h"
#include "tests/support/sanitized.h"
#include "tests/support/tiny_dataset.h"
#include "tests/transforms/exif_files.h"
#include "tests/transforms/image_files.h"

namespace penstock {
namespace {

using Bytes = std::vector<std::byte>;

std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes photo(int width, int height, uint64_t seed, int sampling = 2) {
  return penstock_test::encode_jpeg(penstock_test::make_rgb(width, height, seed), width, height, 85, sampling);
}

// PNGs of TinyDataset, JPEGs of two samplings, and files with something wrong, in the order of the dataset.
struct Files {
  Files() : data(10, "on_error: substitute\n") {
    put("class0/a.jpg", photo(90, 60, 1));
    put("class0/b.jpg", photo(31, 77, 2, 1));
    put("class1/tall.jpg", photo(25, 200, 3));
    put("class1/empty.jpg", {});
    Bytes cut = photo(80, 80, 4);
    cut.resize(cut.size() / 2);
    put("class2/cut.jpg", cut);
    cut.resize(40);
    put("class2/header_cut.jpg", cut);
    put("class3/text.png", Bytes(100, std::byte{'x'}));
    put("class4/wide.jpg", photo(300, 20, 5));
    // Index order, as ImageFolder has it: classes, then names.
    for (int c = 0; c < TinyDataset::kClasses; ++c) {
      const std::string folder = "data/class" + std::to_string(c);
      std::map<std::string, Bytes> sorted;
      for (const auto& entry : std::filesystem::directory_iterator(data.folder().path(folder))) {
        Bytes bytes;
        REQUIRE(posix_file_system().read_file(entry.path().string(), 1 << 20, bytes));
        sorted[entry.path().filename().string()] = bytes;
      }
      for (auto& [name, bytes] : sorted) encoded.push_back(std::move(bytes));
    }
  }
  void put(const std::string& name, const Bytes& bytes) { data.folder().write("data/" + name, text_of(bytes)); }

  TinyDataset data;
  std::vector<Bytes> encoded;
};

const Files& files() {
  static const Files made;
  return made;
}

std::vector<EncodedImage> all_images() {
  std::vector<EncodedImage> images;
  for (const Bytes& bytes : files().encoded) images.push_back({bytes, std::nullopt, 0, 0});
  return images;
}

const std::byte* row(const TensorView& view, int64_t i) {
  return view.as<std::byte>() + static_cast<size_t>(i * view.strides[0]) * size_of(view.dtype);
}
size_t row_bytes(const TensorView& view) {
  return static_cast<size_t>(view.strides[0]) * size_of(view.dtype);
}

TEST_CASE("ExifTranspose turns pictures on the whole way") {
  const Bytes plain = photo(60, 40, 9);
  const std::vector<uint8_t> rgb = [&] {
    ImageHeader header;
    Decoder decoder({});
    PixelBuffer storage;
    PixelView view;
    REQUIRE(read_header(plain, {}, header).ok());
    REQUIRE(decoder.decode(plain, header, {0, 0, 60, 40}, storage, view).ok());
    std::vector<uint8_t> all;
    for (int y = 0; y < 40; ++y) all.insert(all.end(), view.row(y), view.row(y) + 60 * 3);
    return all;
  }();
  const Bytes oriented = penstock_test::encode_png(penstock_test::turned(rgb, 60, 40, 6), 40, 60);
  PreprocessorOptions options;
  options.overrides = {"splits.val.pipeline=[ExifTranspose, {CenterCrop: {size: 24}}, {ToDtype: {dtype: uint8}}]"};
  const Preprocessor turns(files().data.job(), "val", options);
  options.overrides = {"splits.val.pipeline=[{CenterCrop: {size: 24}}, {ToDtype: {dtype: uint8}}]"};
  const Preprocessor leaves(files().data.job(), "val", options);
  const Bytes marked = penstock_test::with_orientation(plain, 6);
  const auto pixels = [](const Preprocessor& preprocess, const Bytes& file) {
    const ImageBatch batch = preprocess.run(file);
    return Bytes(row(batch.images(), 0), row(batch.images(), 0) + row_bytes(batch.images()));
  };
  CHECK(pixels(turns, marked) == pixels(leaves, oriented));
  CHECK(pixels(leaves, marked) == pixels(leaves, plain));
  CHECK(turns.fingerprint() != leaves.fingerprint());
}

TEST_CASE("arithmetic: fast gives what validation sees, says so, and is another pipeline than exact") {
  const std::string small =
      "splits.val.pipeline=[{Resize: {size: 12}}, {CenterCrop: {size: 10}}, "
      "{ToDtype: {dtype: uint8}}]";
  PreprocessorOptions options;
  options.overrides = {small};
  const Preprocessor exact(files().data.job(), "val", options);
  options.overrides.emplace_back("arithmetic=fast");
  const Preprocessor fast(files().data.job(), "val", options);
  const ImageBatch all = fast.run(all_images());
  const ImageBatch others = exact.run(all_images());
  DataLoaderOptions same;
  same.overrides = options.overrides;
  DataLoader loader(files().data.job(), "val", same);
  int64_t seen = 0;
  int64_t different = 0;
  for (Batch& batch : loader) {
    CHECK(batch.arithmetic() == Arithmetic::fast);
    for (int64_t i = 0; i < batch.size(); ++i, ++seen) {
      const int64_t index = batch.indices()[i];
      INFO("index " << index);
      CHECK(std::memcmp(row(batch.image(), i), row(all.images(), index), row_bytes(all.images())) == 0);
      different += std::memcmp(row(all.images(), index), row(others.images(), index), row_bytes(all.images())) != 0;
    }
  }
  CHECK(seen >= 18);
  CHECK(different >= 3);  // the good JPEG files that shrink to half
  CHECK(fast.fingerprint() != exact.fingerprint());
  CHECK_NOTHROW(fast.check(fast.state()));
  try {
    fast.check(exact.state());
    FAIL("another arithmetic was let through");
  } catch (const Error& error) {
    CHECK(error.message().find("arithmetic") != std::string::npos);
  }
}

TEST_CASE("what the DataLoader gives in eval mode, byte for byte, broken files too") {
  const auto dtype = [](DType d, bool last) {
    PreprocessorOptions options;
    options.dtype = d;
    options.channels_last = last;
    return options;
  };
  for (const PreprocessorOptions& options :
       {PreprocessorOptions{}, dtype(DType::float16, false), dtype(DType::bfloat16, true), dtype(DType::uint8, true)}) {
    const Preprocessor preprocess(files().data.job(), "val", options);
    const ImageBatch all = preprocess.run(all_images());
    REQUIRE(all.size() == 18);
    CHECK(all.num_good() == 14);
    CHECK(all.images().shape == std::vector<int64_t>{18, 3, 24, 24});
    DataLoaderOptions same;
    same.dtype = options.dtype;
    same.channels_last = options.channels_last;
    DataLoader loader(files().data.job(), "val", same);
    int64_t seen = 0;
    for (Batch& batch : loader) {
      const TensorView images = batch.image();
      CHECK(images.dtype == all.images().dtype);
      CHECK(images.strides == all.images().strides);
      for (int64_t i = 0; i < batch.size(); ++i) {
        const int64_t index = batch.indices()[i];
        INFO("index " << index);
        CHECK(std::memcmp(row(images, i), row(all.images(), index), row_bytes(images)) == 0);
        CHECK((batch.valid()[i] != 0) == all.reasons()[static_cast<size_t>(index)].empty());
        ++seen;
      }
    }
    CHECK(seen == 18);
  }
}

TEST_CASE("a training split: index and epoch give the loader's draws, and nothing less will do") {
  const Preprocessor preprocess(files().data.job(), "train");
  CHECK(preprocess.random_transforms() == std::vector<std::string>{"RandomResizedCrop", "RandomHorizontalFlip"});
  try {
    preprocess.run(files().encoded[0]);
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::usage);
    CHECK(error.message() ==
          "split 'train' draws (RandomResizedCrop, RandomHorizontalFlip), and image 0 has no index "
          "to draw for");
  }
  CHECK_THROWS_AS(preprocess.run(EncodedImage{files().encoded[0], int64_t{1} << 48, 0, 0}), Error);
  CHECK_THROWS_AS(preprocess.run(EncodedImage{files().encoded[0], 0, -1, 0}), Error);
  CHECK_THROWS_AS(preprocess.run(EncodedImage{files().encoded[0], 0, 0, 65536}), Error);

  DataLoader loader(files().data.job(), "train");
  loader.set_epoch(3);
  int compared = 0;
  for (Batch& batch : loader) {
    std::vector<EncodedImage> images;
    for (int64_t i = 0; i < batch.size(); ++i) {
      const int64_t index = batch.indices()[i];
      images.push_back({files().encoded[static_cast<size_t>(index)], index, 3, 0});
    }
    const ImageBatch mine = preprocess.run(images);
    for (int64_t i = 0; i < batch.size(); ++i) {
      // A substitute was drawn for with its own index, which is what the batch says; its file is its own as well.
      CHECK(std::memcmp(row(batch.image(), i), row(mine.images(), i), row_bytes(mine.images())) == 0);
      ++compared;
    }
  }
  CHECK(compared == 18);
  // Another epoch or occurrence, other draws.
  const EncodedImage base{files().encoded[0], 5, 3, 0};
  EncodedImage other = base;
  const ImageBatch first = preprocess.run(base);
  CHECK(std::memcmp(first.images().data, preprocess.run(base).images().data, row_bytes(first.images())) == 0);
  other.epoch = 4;
  CHECK(std::memcmp(first.images().data, preprocess.run(other).images().data, row_bytes(first.images())) != 0);
  other = base;
  other.occurrence = 1;
  CHECK(std::memcmp(first.images().data, preprocess.run(other).images().data, row_bytes(first.images())) != 0);
}

TEST_CASE("statuses: a reason for each image, an exception for a single one") {
  PreprocessorOptions options;
  options.overrides = {"limits.max_pixels=5000"};
  const Preprocessor preprocess(files().data.job(), "val", options);
  const Bytes good = photo(50, 50, 9);
  Bytes cut = good;
  cut.resize(cut.size() / 2);
  const Bytes large = photo(80, 80, 9);
  const Bytes text(30, std::byte{'<'});
  const ImageBatch batch = preprocess.run(std::vector<EncodedImage>{{{}, std::nullopt, 0, 0},
                                                                    {good, std::nullopt, 0, 0},
                                                                    {cut, std::nullopt, 0, 0},
                                                                    {large, std::nullopt, 0, 0},
                                                                    {text, std::nullopt, 0, 0}});
  const std::vector<std::string>& reasons = batch.reasons();
  CHECK(reasons[0] == "empty file");
  CHECK(reasons[1].empty());
  CHECK(reasons[2].find("premature end") != std::string::npos);
  CHECK(reasons[3] == "image of 80x80 pixels: over the limit of 5000 (limits.max_pixels)");
  CHECK(reasons[4].find("not a JPEG, PNG, GIF") == 0);
  CHECK(batch.num_good() == 1);
  const float* pixels = batch.images().as<float>();
  CHECK(pixels[0] == 0.0f);  // black, scaled
  try {
    preprocess.run(EncodedImage{cut, 7, 0, 0});
    FAIL("not refused");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::dataset);
    CHECK(error.message() == "unusable image (index 7): " + reasons[2]);
  }
  CHECK_THROWS_AS(preprocess.run(std::span<const std::byte>{}), Error);
}

TEST_CASE("calls from many threads, batches that outlive the pool, an empty batch") {
  PreprocessorOptions options;
  options.threads = 3;
  auto preprocess = std::make_unique<Preprocessor>(files().data.job(), "val", options);
  CHECK(preprocess->threads() == 3);
  CHECK(preprocess->run(std::vector<EncodedImage>{}).images().shape == std::vector<int64_t>{0, 3, 24, 24});
  const ImageBatch wanted = preprocess->run(all_images());
  const auto same = [&](const ImageBatch& batch) {
    return std::memcmp(batch.images().data, wanted.images().data, 18 * row_bytes(wanted.images())) == 0 &&
           batch.reasons() == wanted.reasons();
  };
  std::atomic<int> equal{0};
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 10; ++i) equal += same(preprocess->run(all_images())) ? 1 : 0;
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(equal == 40);

  ImageBatch kept = preprocess->run(all_images());
  PendingImages pending = preprocess->submit(all_images());
  preprocess.reset();
  CHECK(same(pending.wait()));
  CHECK(same(kept));
  CHECK_THROWS_AS(pending.wait(), Error);
}

TEST_CASE("memory is used again only when nobody has it") {
  const Preprocessor preprocess(files().data.job(), "val");
  ImageBatch first = preprocess.run(files().encoded[0]);
  const ImageBatch copy = first;
  const void* address = first.images().data;
  const ImageBatch second = preprocess.run(files().encoded[1]);
  CHECK(second.images().data != address);
  first = {};
  CHECK(preprocess.run(files().encoded[1]).images().data != address);  // `copy` has it
  CHECK(copy.size() == 1);
}

TEST_CASE("what is dropped is given up, and the bytes are free at once") {
  PreprocessorOptions options;
  options.threads = 1;
  const Preprocessor preprocess(files().data.job(), "val", options);
  const Bytes large = photo(1500, 1500, 6);
  const auto begun = std::chrono::steady_clock::now();
  for (int round = 0; round < 20; ++round) {
    auto image = std::make_unique<Bytes>(large);
    const std::vector<EncodedImage> views(200, {*image, std::nullopt, 0, 0});
    { const PendingImages dropped = preprocess.submit(views); }
    image.reset();  // under AddressSanitizer a thread that still read them would show
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  MESSAGE("20 x 200 dropped images: " << seconds << " s");
  CHECK(preprocess.run(files().encoded[0]).size() == 1);
  CHECK(seconds < 20);  // made to the end they would be 4,000 decodes of 2 megapixels
}

TEST_CASE("a waiting caller is asked, and may come back") {
  PreprocessorOptions options;
  options.threads = 1;
  const Preprocessor preprocess(files().data.job(), "val", options);
  const Bytes large = photo(1500, 1500, 6);
  std::vector<EncodedImage> views(150 / kSanitizedFactor, {large, std::nullopt, 0, 0});
  PendingImages pending = preprocess.submit(views);
  CHECK_THROWS_AS(pending.wait([] { throw std::runtime_error("enough waited"); }), std::runtime_error);
  CHECK(pending.wait().num_good() == static_cast<int>(views.size()));
}

TEST_CASE("a child of fork() is told, and may drop what it inherited") {
  auto preprocess = std::make_unique<Preprocessor>(files().data.job(), "val");
  auto pending = std::make_unique<PendingImages>(preprocess->submit(all_images()));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    int code = 1;
    try {
      preprocess->run(files().encoded[0]);
    } catch (const Error& error) {
      code = error.kind() == ErrorKind::usage ? 0 : 2;
    }
    pending.reset();
    preprocess.reset();
    ::_exit(code);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  CHECK(pending->wait().size() == 18);
}

std::string complaint(const Preprocessor& preprocess, const std::string& state) {
  try {
    preprocess.check(state);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::config);
    return error.message();
  }
  return "";
}

TEST_CASE("the pipeline's identity, against states of its own and of a DataLoader") {
  const auto with = [&](std::vector<std::string> overrides, const std::string& split = "val") {
    PreprocessorOptions options;
    options.overrides = std::move(overrides);
    return Preprocessor(files().data.job(), split, options);
  };
  const Preprocessor now = with({});
  CHECK(now.fingerprint().size() == 32);
  // What gives a file the same tensor has the same identity.
  for (const char* same : {"seed=9", "splits.val.batch_size=3", "splits.val.dataset.folder=/elsewhere",
                           "limits.max_pixels=1000", "loader.threads=1"}) {
    INFO(same);
    const Preprocessor other = with({same});
    CHECK(other.fingerprint() == now.fingerprint());
    CHECK(complaint(other, now.state()) == "");
  }
  const Preprocessor other = with({"splits.val.pipeline.0.CenterCrop.size=20"});
  CHECK(other.fingerprint() != now.fingerprint());
  CHECK(complaint(other, now.state()) ==
        "the pipeline of split 'val' is not the one that was saved: splits.val.pipeline.0.CenterCrop.size "
        "(saved: [24], now: [20])");
  CHECK(complaint(with({}, "train"), now.state()).find("(with split 'val'): splits.train.pipeline") !=
        std::string::npos);

  DataLoader loader(files().data.job(), "val");
  CHECK(complaint(now, loader.state(0, 1)) == "");
  CHECK(complaint(other, loader.state(0, 1)).find("CenterCrop.size") != std::string::npos);

  std::string decoders = now.state();
  const size_t at = decoders.find("libjpeg-turbo");
  REQUIRE(at != std::string::npos);
  decoders.replace(at, 13, "other-library");
  CHECK(complaint(now, decoders).find("decoders: other-library") != std::string::npos);
  for (const std::string& bad : {std::string(), std::string("[]"), std::string("{}"), std::string(3 << 20, ' '),
                                 std::string(R"({"penstock_pipeline": 1})"),
                                 std::string(R"({"penstock_pipeline": 1, "spec": "{}", "decoders": ""})")}) {
    CHECK(complaint(now, bad) != "");
  }
}

TEST_CASE("bad use is refused by name") {
  CHECK_THROWS_AS(Preprocessor("/nowhere/job.yaml", "val"), Error);
  CHECK_THROWS_AS(Preprocessor(files().data.job(), "vall"), Error);
  PreprocessorOptions options;
  options.threads = -1;
  CHECK_THROWS_AS(Preprocessor(files().data.job(), "val", options), Error);
  options.threads = 0;
  options.dtype = DType::int64;
  CHECK_THROWS_AS(Preprocessor(files().data.job(), "val", options), Error);
  // The dataset is not looked at: a server has none.
  options = {};
  options.overrides = {"splits.val.dataset.folder=/nowhere"};
  CHECK(Preprocessor(files().data.job(), "val", options).run(files().encoded[0]).size() == 1);
}

}  // namespace
}  // namespace penstock
