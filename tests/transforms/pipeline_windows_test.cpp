// The pipeline decodes and resamples only what its output depends on. Here the same operations are done one after the
// other on whole images, in the plainest way, and the bytes must be equal.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>

#include "runtime/pixels/resample_reference.h"
#include "runtime/transforms/catalog.h"
#include "runtime/transforms/pipeline.h"
#include "runtime/transforms/transform.h"
#include "tests/support/sanitized.h"
#include "tests/transforms/count_allocations.h"
#include "tests/transforms/image_files.h"

using penstock::Box;
using penstock::DecodeLimits;
using penstock::Draws;
using penstock::EncodedView;
using penstock::Error;
using penstock::GeometricOp;
using penstock::ImageHeader;
using penstock::OpKind;
using penstock::ParamMap;
using penstock::ParamValue;
using penstock::Pipeline;
using penstock::Scratch;
using penstock::Size;
using penstock::TransformSpec;
using List = std::vector<double>;

namespace {

struct Image {
  Size size;
  std::vector<uint8_t> rgb;
  const uint8_t* at(int x, int y) const {
    return rgb.data() + (static_cast<size_t>(y) * static_cast<size_t>(size.width) + static_cast<size_t>(x)) * 3;
  }
};

Image step(const Image& in, const GeometricOp& op) {
  Image out{op.out, std::vector<uint8_t>(static_cast<size_t>(op.out.width) * static_cast<size_t>(op.out.height) * 3)};
  if (op.kind == OpKind::resize) {
    const penstock::PixelView view{in.rgb.data(), in.size.width, in.size.height,
                                   static_cast<size_t>(in.size.width) * 3};
    out.rgb = penstock::resample_reference({in.size.width, in.size.height, op.out.width, op.out.height, op.filter},
                                           view, {0, 0, op.out.width, op.out.height});
    return out;
  }
  uint8_t* to = out.rgb.data();
  for (int y = 0; y < op.out.height; ++y) {
    for (int x = 0; x < op.out.width; ++x, to += 3) {
      int from_x = x, from_y = y;
      if (op.kind == OpKind::crop) from_x += op.box.x, from_y += op.box.y;
      if (op.kind == OpKind::flip_horizontal) from_x = in.size.width - 1 - x;
      if (op.kind == OpKind::flip_vertical) from_y = in.size.height - 1 - y;
      const bool inside = from_x >= 0 && from_y >= 0 && from_x < in.size.width && from_y < in.size.height;
      std::memcpy(to, inside ? in.at(from_x, from_y) : op.fill.image.data(), 3);
    }
  }
  return out;
}

// How many values a transform draws.
size_t count_of(const TransformSpec& spec) {
  if (spec.name == "RandomResizedCrop") {
    const auto filter = spec.params.find("interpolation");
    return filter != spec.params.end() && std::holds_alternative<std::vector<std::string>>(filter->second) ? 5 : 4;
  }
  if (spec.name == "RandomCrop") return 2;
  if (spec.name == "Resize" || spec.name == "CenterCrop") return 0;
  if (!spec.params.contains("transforms")) return 1;
  const auto& inside = std::get<std::vector<TransformSpec>>(spec.params.at("transforms"));
  size_t count = spec.name == "RandomOrder" ? inside.size() : 1;
  for (const TransformSpec& inner : inside) count += count_of(inner);
  return count;
}

void naive_transform(const TransformSpec& spec, Image& image, std::span<const int64_t> values) {
  REQUIRE(values.size() == count_of(spec));
  if (spec.params.contains("transforms")) {
    const auto& inside = std::get<std::vector<TransformSpec>>(spec.params.at("transforms"));
    size_t at = spec.name == "RandomOrder" ? inside.size() : 1;
    for (size_t i = 0; i < inside.size(); ++i) {
      const size_t which = spec.name == "RandomOrder" ? static_cast<size_t>(values[i]) : i;
      const bool applied = spec.name == "RandomOrder" || (spec.name == "RandomApply" && values[0] == 1) ||
                           (spec.name == "RandomChoice" && values[0] == static_cast<int64_t>(i));
      if (applied) naive_transform(inside[which], image, values.subspan(at, count_of(inside[which])));
      at += count_of(inside[which]);
    }
    return;
  }
  if (spec.name == "RandomInvert") {
    for (uint8_t& value : image.rgb) value = static_cast<uint8_t>(values[0] == 1 ? 255 - value : value);
    return;
  }
  const penstock::TransformInfo& info = *penstock::find_transform(spec.name);
  const penstock::Transform transform = info.make(penstock::complete_params(info, spec.params));
  const auto* geometric = penstock::as<penstock::GeometricTransform>(transform);
  REQUIRE(geometric != nullptr);
  penstock::OpList ops(image.size);
  REQUIRE(geometric->geometry(image.size, values, ops).ok());
  for (const GeometricOp& op : ops.ops()) image = step(image, op);
}

// All transforms on the whole image; planar.
std::vector<uint8_t> naive(const std::vector<TransformSpec>& specs, Image image, const Draws& draws) {
  size_t next = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    std::vector<int64_t> values;
    if (next < draws.size() && draws[next].position == i) values = draws[next++].values;
    naive_transform(specs[i], image, values);
  }
  std::vector<uint8_t> planar(image.rgb.size());
  const size_t area = planar.size() / 3;
  for (size_t i = 0; i < area; ++i) {
    for (size_t c = 0; c < 3; ++c) planar[c * area + i] = image.rgb[i * 3 + c];
  }
  return planar;
}

Image decode_whole(EncodedView bytes, const ImageHeader& header) {
  penstock::Decoder decoder{DecodeLimits{}};
  penstock::PixelBuffer storage;
  penstock::PixelView view;
  REQUIRE(decoder.decode(bytes, header, {0, 0, header.width, header.height}, storage, view).ok());
  Image image{{header.width, header.height}, {}};
  for (int y = 0; y < header.height; ++y) {
    image.rgb.insert(image.rgb.end(), view.row(y), view.row(y) + static_cast<size_t>(header.width) * 3);
  }
  return image;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int operator()(int low, int high) {
    return low + static_cast<int>(engine_() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 engine_;
};

TransformSpec random_transform(Random& random, int depth = 0) {
  if (depth < 2 && random(0, 9) == 0) {
    std::vector<TransformSpec> inside;
    for (int n = random(1, 3); n > 0; --n) inside.push_back(random_transform(random, depth + 1));
    static const char* const groups[] = {"RandomApply", "RandomChoice", "RandomOrder"};
    return {groups[random(0, 2)], {{"transforms", std::move(inside)}}};
  }
  static const char* const filters[] = {"nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"};
  const std::string filter = filters[random(0, 5)];
  const auto side = [&] { return static_cast<double>(random(1, 70)); };
  switch (random(0, 9)) {
    case 0: {
      const ParamValue either = std::vector<std::string>{filter, "bicubic"};
      return {"RandomResizedCrop",
              {{"size", List{side(), side()}}, {"interpolation", random(0, 1) == 1 ? ParamValue(filter) : either}}};
    }
    case 1: return {"Resize", {{"size", List{side(), side()}}, {"interpolation", filter}}};
    case 2: return {"Resize", {{"size", List{side()}}, {"interpolation", filter}}};
    case 3: return {"CenterCrop", {{"size", List{side(), side()}}}};
    case 4: {
      TransformSpec spec{"RandomCrop",
                         {{"size", List{side(), side()}},
                          {"pad_if_needed", true},
                          {"fill", List{static_cast<double>(random(0, 255)), 7, 99}}}};
      if (random(0, 1) == 1)
        spec.params["padding"] = List{static_cast<double>(random(0, 9)), static_cast<double>(random(0, 90))};
      return spec;
    }
    case 5: return {"RandomInvert", {{"p", 0.5}}};
    case 6: return {"RandomHorizontalFlip", {{"p", 0.7}}};
    case 7: {
      const int64_t least = random(1, 40);
      return {"RandomResize", {{"min_size", least}, {"max_size", least + random(1, 20)}, {"interpolation", filter}}};
    }
    case 8:  // 1 / n * n may be less than 1
      return {"RandomShortestSize", {{"min_size", List{side() + 1, side() + 1}}, {"interpolation", filter}}};
    default: return {"RandomVerticalFlip", {{"p", 0.7}}};
  }
}

std::string text(const std::vector<TransformSpec>& specs) {
  std::string out;
  for (const TransformSpec& spec : specs) out += penstock::canonical_text(spec) + " ";
  return out;
}

std::vector<std::byte> encode(Random& random, int width, int height, uint64_t seed) {
  const std::vector<uint8_t> rgb = penstock_test::make_rgb(width, height, seed);
  if (random(0, 3) == 0) return penstock_test::encode_png(rgb, width, height);
  return penstock_test::encode_jpeg(rgb, width, height, random(40, 98), random(1, 2));
}

ImageHeader header_of(EncodedView bytes) {
  ImageHeader header;
  const penstock::SampleStatus status = penstock::read_header(bytes, DecodeLimits{}, header);
  REQUIRE_MESSAGE(status.ok(), status.reason);
  return header;
}

// The most memory this process has had.
long peak_kb() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

}  // namespace

TEST_CASE("random pipelines equal their steps on whole images, byte for byte") {
  constexpr uint64_t kSeed = 4711;
  constexpr int kPipelines = 3000;
  std::printf("pipelines: seed %llu\n", static_cast<unsigned long long>(kSeed));
  Random random(kSeed);
  Scratch scratch{DecodeLimits{}};
  std::vector<uint8_t> out;
  int padded = 0, resized = 0, grouped = 0;
  for (int i = 0; i < kPipelines; ++i) {
    std::vector<TransformSpec> specs;
    for (int n = random(1, 5); n > 0; --n) specs.push_back(random_transform(random));
    specs.push_back({"CenterCrop", {{"size", static_cast<int64_t>(random(1, 60))}}});
    for (int n = random(0, 2); n > 0; --n) {
      specs.push_back({n == 1 ? "RandomHorizontalFlip" : "RandomVerticalFlip", {}});
    }
    // Often nothing but the last transform fixes the size; sometimes end in a resize, which writes planes itself.
    if (random(0, 1) == 1) specs.push_back({"RandomResizedCrop", {{"size", static_cast<int64_t>(random(1, 60))}}});
    if (random(0, 1) == 1) specs.push_back({"RandomHorizontalFlip", {}});
    if (random(0, 3) == 0) specs.push_back({"RandomInvert", {}});

    const int width = random(1, 120), height = random(1, 120);
    const std::vector<std::byte> bytes = encode(random, width, height, static_cast<uint64_t>(i));
    const ImageHeader header = header_of(bytes);
    const Pipeline pipeline(specs);
    out.assign(static_cast<size_t>(pipeline.out_width()) * static_cast<size_t>(pipeline.out_height()) * 3, 0xee);
    const Draws draws = pipeline.draw({.seed = kSeed, .epoch = 1, .index = static_cast<uint64_t>(i)}, header);
    const penstock::SampleStatus status = pipeline.apply(bytes, header, draws, out, scratch);
    REQUIRE_MESSAGE(status.ok(), status.reason);
    const std::vector<uint8_t> expected = naive(specs, decode_whole(bytes, header), draws);
    REQUIRE(expected.size() == out.size());
    if (expected != out) {
      const auto first = std::mismatch(expected.begin(), expected.end(), out.begin()).first - expected.begin();
      FAIL("pipeline " << i << " on " << width << " x " << height << ", byte " << first << " of " << out.size() << ": "
                       << text(specs));
    }
    const std::string all = text(specs);
    padded += all.find("RandomCrop") != std::string::npos ? 1 : 0;
    grouped += all.find("RandomOrder") != std::string::npos ? 1 : 0;
    resized += all.find("Resize(") != std::string::npos ? 1 : 0;
  }
  CHECK(padded > kPipelines / 5);
  CHECK(resized > kPipelines / 5);
  CHECK(grouped > kPipelines / 50);
}

TEST_CASE("draws are a function of key and header, in pipeline order") {
  const Pipeline pipeline({{"RandomHorizontalFlip", {}},
                           {"Resize", {{"size", List{20, 30}}}},
                           {"RandomCrop", {{"size", int64_t{16}}}},
                           {"RandomVerticalFlip", {}}});
  const ImageHeader header{penstock::ImageFormat::jpeg, 50, 40};
  const Draws a = pipeline.draw({.seed = 1, .epoch = 2, .index = 3, .occurrence = 4}, header);
  REQUIRE(a.size() == 3);
  CHECK(a[0].position == 0);
  CHECK(a[1].position == 2);
  CHECK(a[2].position == 3);
  CHECK(a == pipeline.draw({.seed = 1, .epoch = 2, .index = 3, .occurrence = 4}, header));
  int different = 0;
  for (uint16_t occurrence = 5; occurrence < 30; ++occurrence) {
    different += a == pipeline.draw({.seed = 1, .epoch = 2, .index = 3, .occurrence = occurrence}, header) ? 0 : 1;
  }
  CHECK(different > 20);
}

TEST_CASE("a pipeline without a fixed size, or in the wrong order, is refused by name") {
  const auto complaint = [](const std::vector<TransformSpec>& specs) -> std::string {
    try {
      const Pipeline pipeline(specs);
    } catch (const Error& error) {
      CHECK(error.kind() == penstock::ErrorKind::config);
      return error.what();
    }
    return "";
  };
  const TransformSpec crop{"CenterCrop", {{"size", int64_t{8}}}};
  const TransformSpec to_float{"ToDtype", {{"dtype", std::string("float32")}, {"scale", true}}};
  const TransformSpec normalize{"Normalize", {{"mean", 0.5}, {"std", 0.5}}};
  CHECK(complaint({}).find("output size depends on the image\n  help: add CenterCrop or Resize: {size: [h, w]}") !=
        std::string::npos);
  CHECK(complaint({{"Resize", {{"size", int64_t{8}}}}}).find("depends on the image") != std::string::npos);
  const TransformSpec drawn{"RandomResize", {{"min_size", int64_t{9}}, {"max_size", int64_t{10}}}};
  for (const TransformSpec& spec : std::vector<TransformSpec>{
           drawn, {"RandomShortestSize", {{"min_size", 9.0}}}, {"ScaleJitter", {{"target_size", List{9, 9}}}}}) {
    CHECK(complaint({crop, spec}).find("depends on the image") != std::string::npos);
    CHECK(complaint({spec, crop}).empty());
  }
  CHECK(complaint({to_float, crop}).find("pipeline[1]: CenterCrop stands after ToDtype") != std::string::npos);
  CHECK(complaint({crop, normalize}).find("pipeline[1]: Normalize needs a float tensor") != std::string::npos);
  CHECK(complaint({crop, to_float, normalize, normalize}).find("twice") != std::string::npos);
  CHECK(complaint({crop, {"Rotate", {}}}).find("pipeline[1]: there is no transform 'Rotate'") != std::string::npos);
  CHECK(complaint({{"CenterCrop", {}}}).find("CenterCrop: size: is required") != std::string::npos);
  CHECK(complaint({crop, to_float, {"ToDtype", {{"dtype", std::string("uint8")}}}}).find("uint8") != std::string::npos);
  CHECK(complaint({{"TenCrop", {{"size", int64_t{8}}}}, crop})
            .find("pipeline[1]: CenterCrop stands after TenCrop\n  help: FiveCrop and TenCrop make several") !=
        std::string::npos);
  CHECK(complaint({crop, to_float, normalize}).empty());
  CHECK(complaint({crop, {"Resize", {{"size", int64_t{5}}}}}).empty());  // fixed, as the crop is
  CHECK(complaint({{"CenterCrop", {{"size", int64_t{65500}}}}}).find("2^29") != std::string::npos);
}

TEST_CASE("ToDtype and Normalize become the finishing pass") {
  const Pipeline pipeline({{"CenterCrop", {{"size", int64_t{8}}}},
                           {"ToDtype", {{"dtype", std::string("float32")}, {"scale", true}}},
                           {"Normalize", {{"mean", List{0.1, 0.2, 0.3}}, {"std", 0.5}}},
                           {"ToDtype", {{"dtype", std::string("float16")}}}});
  const penstock::FinishSpec& spec = pipeline.finish();
  CHECK(spec.dtype == penstock::DType::float16);
  CHECK(spec.scale);
  CHECK(spec.normalize);
  CHECK(spec.mean == std::array<float, 3>{0.1f, 0.2f, 0.3f});
  CHECK(spec.std == std::array<float, 3>{0.5f, 0.5f, 0.5f});
  CHECK(pipeline.canonical() ==
        "CenterCrop(size=[8])\nToDtype(dtype=float32, scale=true)\n"
        "Normalize(inplace=false, mean=[0.1, 0.2, 0.3], std=[0.5])\nToDtype(dtype=float16, scale=false)\n");
}

TEST_CASE("describe: the box in source pixels, flips, and the rest") {
  const ImageHeader header{penstock::ImageFormat::jpeg, 100, 80};
  SUBCASE("crop first") {
    const Pipeline pipeline({{"RandomResizedCrop", {{"size", int64_t{8}}}}, {"RandomHorizontalFlip", {}}});
    const Pipeline::Description d = pipeline.describe(header, {{0, {10, 20, 30, 40}}, {1, {1}}});
    CHECK(d.has_crop);
    CHECK(d.crop == Box{10, 20, 30, 40});
    CHECK(d.flip[0]);
    CHECK_FALSE(d.flip[1]);
    CHECK(d.others.empty());
  }
  SUBCASE("flipped before the crop: the box is still the source's") {
    const Pipeline pipeline(
        {{"RandomHorizontalFlip", {}}, {"RandomCrop", {{"size", int64_t{30}}, {"padding", int64_t{5}}}}});
    const Pipeline::Description d = pipeline.describe(header, {{0, {1}}, {1, {-5, 10}}});
    CHECK(d.crop == Box{75, 10, 30, 30});
    CHECK(d.flip[0]);
    CHECK(d.others.empty());
  }
  SUBCASE("two crops add up") {
    const Pipeline pipeline({{"CenterCrop", {{"size", List{40, 50}}}}, {"CenterCrop", {{"size", int64_t{60}}}}});
    CHECK(pipeline.describe(header, {}).crop == Box{20, 10, 60, 60});
  }
  SUBCASE("resize first: no box, and the later crop is told as draws") {
    const Pipeline pipeline({{"Resize", {{"size", int64_t{40}}}}, {"RandomCrop", {{"size", int64_t{32}}}}});
    const Draws draws = {{1, {3, 4}}};
    const Pipeline::Description d = pipeline.describe(header, draws);
    CHECK_FALSE(d.has_crop);
    CHECK(d.crop == Box{});
    CHECK(d.others == draws);
  }
  SUBCASE("colour changes nothing about the box, and is told as draws") {
    const Pipeline pipeline({{"RandomInvert", {}}, {"RandomCrop", {{"size", int64_t{30}}}}});
    const Pipeline::Description d = pipeline.describe(header, {{0, {1}}, {1, {3, 4}}});
    CHECK(d.crop == Box{3, 4, 30, 30});
    CHECK(d.others == Draws{{0, {1}}});
  }
  SUBCASE("several flips of an axis are told as draws, and added up") {
    const Pipeline pipeline(
        {{"CenterCrop", {{"size", int64_t{8}}}}, {"RandomVerticalFlip", {}}, {"RandomVerticalFlip", {}}});
    const Draws draws = {{1, {1}}, {2, {1}}};
    const Pipeline::Description d = pipeline.describe(header, draws);
    CHECK_FALSE(d.flip[1]);
    CHECK(d.others == draws);
  }
}

TEST_CASE("samples that do not suit are bad; misuse is an error") {
  const std::vector<uint8_t> rgb = penstock_test::make_rgb(40, 20, 1);
  const std::vector<std::byte> bytes = penstock_test::encode_jpeg(rgb, 40, 20, 90, 2);
  const ImageHeader header = header_of(bytes);
  Scratch scratch{DecodeLimits{}};
  std::vector<uint8_t> out(3 * 32 * 32);
  const Pipeline crop(
      {{"RandomHorizontalFlip", {}}, {"RandomCrop", {{"size", int64_t{32}}}}, {"RandomVerticalFlip", {}}});
  const Draws draws = crop.draw({}, header);
  CHECK(draws.size() == 2);  // nothing after the crop that cannot be
  CHECK(crop.apply(bytes, header, draws, out, scratch).reason.find("does not fit into 40 x 20") != std::string::npos);

  const Pipeline five({{"FiveCrop", {{"size", List{21, 32}}}}});
  CHECK(five.views() == 5);
  std::vector<uint8_t> views(5 * 3 * 21 * 32);
  CHECK(five.apply(bytes, header, {}, views, scratch).reason == "FiveCrop of 32 x 21 does not fit into 40 x 20");

  const Pipeline resize({{"Resize", {{"size", int64_t{32}}}}, {"CenterCrop", {{"size", int64_t{32}}}}});
  CHECK_THROWS_AS(resize.apply(bytes, header, {{1, {1}}}, out, scratch), Error);
  CHECK_THROWS_AS(resize.apply(bytes, header, {}, std::span(out).first(5), scratch), Error);
  CHECK(resize.apply(bytes, header, {}, out, scratch).ok());
  const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(bytes.size() / 2));
  CHECK_FALSE(resize.apply(cut, header, {}, out, scratch).ok());
  CHECK(resize.apply(bytes, header, {}, out, scratch).ok());  // and the scratch is as good as new
}

TEST_CASE("a sliver that would need gigabytes in between is refused before memory is taken") {
  const int height = 60'000;
  const std::vector<std::byte> bytes =
      penstock_test::encode_jpeg(penstock_test::make_rgb(1, height, 1), 1, height, 90, 1);
  const Pipeline pipeline({{"Resize", {{"size", int64_t{256}}}}, {"Resize", {{"size", List{224, 224}}}}});
  Scratch scratch{DecodeLimits{}};
  std::vector<uint8_t> out(3 * 224 * 224);
  const long before = peak_kb();
  const std::string reason = pipeline.apply(bytes, header_of(bytes), {}, out, scratch).reason;
  CHECK(reason.find("intermediate image of 224 x 15360000") != std::string::npos);
  CHECK(peak_kb() - before < 50'000 * penstock::kSanitizedFactor);
}

TEST_CASE("a pixel transform that does not act leaves the windows alone") {
  const std::vector<std::byte> bytes =
      penstock_test::encode_jpeg(penstock_test::make_rgb(900, 700, 1), 900, 700, 90, 2);
  const ImageHeader header = header_of(bytes);
  const Pipeline pipeline({{"RandomInvert", {}}, {"CenterCrop", {{"size", int64_t{16}}}}, {"RandomInvert", {}}});
  std::vector<uint8_t> out(3 * 16 * 16), inverted(out.size());
  Scratch idle{DecodeLimits{}};
  REQUIRE(pipeline.apply(bytes, header, {{0, {0}}, {2, {0}}}, out, idle).ok());
  CHECK(idle.whole[0].capacity_bytes() == 0);
  Scratch last{DecodeLimits{}};
  REQUIRE(pipeline.apply(bytes, header, {{0, {0}}, {2, {1}}}, inverted, last).ok());
  CHECK(last.whole[0].capacity_bytes() < 2000);  // of the final size
  for (uint8_t& value : inverted) value = static_cast<uint8_t>(255 - value);
  CHECK(inverted == out);
  Scratch first{DecodeLimits{}};
  REQUIRE(pipeline.apply(bytes, header, {{0, {1}}, {2, {1}}}, inverted, first).ok());
  CHECK(first.whole[0].capacity_bytes() > 3 * 900 * 700);
  CHECK(inverted == out);
}

TEST_CASE("groups: draws follow from the key, sizes are known where every choice agrees") {
  const auto inside = [](std::vector<TransformSpec> specs) { return ParamMap{{"transforms", std::move(specs)}}; };
  const TransformSpec crop{"RandomCrop", {{"size", int64_t{8}}}};
  const TransformSpec flip{"RandomHorizontalFlip", {}};
  const TransformSpec invert{"RandomInvert", {}};
  const auto fixed = [](const std::vector<TransformSpec>& specs) {
    try {
      const Pipeline pipeline(specs);
      return true;
    } catch (const Error&) {
      return false;
    }
  };
  CHECK(fixed({crop, {"RandomApply", inside({flip, invert})}}));
  CHECK(fixed({{"RandomChoice", inside({crop, crop})}}));
  CHECK(fixed({{"CenterCrop", {{"size", int64_t{8}}}}, {"RandomOrder", inside({flip, crop})}}));
  CHECK_FALSE(fixed({{"RandomApply", inside({crop})}}));
  CHECK_FALSE(fixed({{"RandomChoice", inside({crop, flip})}}));
  CHECK_FALSE(fixed({{"RandomOrder", inside({crop, flip})}}));

  // The shares of a choice, and every order of three.
  const Pipeline choice(
      {crop, {"RandomChoice", {{"transforms", std::vector{flip, invert, flip}}, {"p", List{1, 0, 3}}}}});
  const Pipeline order({crop, {"RandomOrder", inside({flip, invert, flip})}});
  const ImageHeader header{penstock::ImageFormat::jpeg, 50, 40};
  int chosen[3] = {0, 0, 0};
  std::map<std::vector<int64_t>, int> orders;
  for (uint64_t index = 0; index < 6000; ++index) {
    const Draws drawn = choice.draw({.seed = 5, .index = index}, header);
    REQUIRE(drawn.size() == 2);
    REQUIRE(drawn[1].values.size() == 4);
    ++chosen[drawn[1].values[0]];
    const std::vector<int64_t> values = order.draw({.seed = 5, .index = index}, header)[1].values;
    REQUIRE(values.size() == 6);
    ++orders[{values.begin(), values.begin() + 3}];
  }
  CHECK(chosen[1] == 0);
  CHECK(std::abs(chosen[0] - 1500) < 150);  // 4.5 standard deviations
  CHECK(orders.size() == 6);
  for (const auto& [which, count] : orders) CHECK(std::abs(count - 1000) < 130);
  // What a group does is told as its draws; a flip inside it is told as well.
  const Pipeline::Description d = order.describe(header, {{0, {1, 2}}, {1, {2, 0, 1, 1, 0, 1}}});
  CHECK(d.flip[0]);
  CHECK(d.others == Draws{{1, {2, 0, 1, 1, 0, 1}}});
  CHECK_THROWS_AS(order.describe(header, {{0, {1, 2}}, {1, {2, 2, 1, 1, 0, 1}}}), Error);
}

TEST_CASE("in the steady state nothing is allocated, and time is told apart") {
  const std::vector<std::byte> bytes =
      penstock_test::encode_jpeg(penstock_test::make_rgb(300, 200, 1), 300, 200, 90, 2);
  const ImageHeader header = header_of(bytes);
  const Pipeline pipeline({{"RandomHorizontalFlip", {{"p", int64_t{1}}}},
                           {"Resize", {{"size", List{150, 150}}}},
                           {"RandomVerticalFlip", {{"p", int64_t{1}}}},
                           {"Resize", {{"size", List{64, 64}}}}});
  Scratch scratch{DecodeLimits{}};
  std::vector<uint8_t> out(3 * 64 * 64);
  const Draws draws = pipeline.draw({}, header);
  REQUIRE(pipeline.apply(bytes, header, draws, out, scratch).ok());
  const size_t capacity[2] = {scratch.pixels[0].capacity_bytes(), scratch.pixels[1].capacity_bytes()};
  const long before = penstock_test::allocations();
  bool good = true;
  for (int i = 0; i < 10; ++i) good = pipeline.apply(bytes, header, draws, out, scratch).ok() && good;
  CHECK(before > 0);
  CHECK(penstock_test::allocations() == before);
  CHECK(good);
  CHECK(scratch.pixels[0].capacity_bytes() == capacity[0]);
  CHECK(scratch.pixels[1].capacity_bytes() == capacity[1]);
  CHECK(scratch.decode_ns > 0);
  CHECK(scratch.augment_ns > 0);
}
