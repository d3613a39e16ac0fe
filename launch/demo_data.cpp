#include "launch/demo_data.h"

// jpeglib.h needs size_t and FILE declared before it.
#include <cstdio>

#include <jpeglib.h>

#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdlib>
#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/base/file_system.h"
#include "runtime/base/several_threads.h"
#include "runtime/base/thread_annotations.h"

namespace penstock {
namespace {

constexpr const char* kManifestName = "penstock-demo-data.txt";
constexpr int kHues = 12;
constexpr int kDirections = 6;
constexpr int kShapes = 6;
constexpr int kMaxClasses = 400;  // of hues * directions * shapes
constexpr int kMaxMegapixels = 100;

// SplitMix64: small, quick, and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  // A whole number in [low, high].
  int between(int low, int high) {
    return low + static_cast<int>((next() >> 32) * static_cast<uint64_t>(high - low + 1) >> 32);
  }
  bool chance(int percent) { return between(0, 99) < percent; }
  // Bell-shaped around 0 with a standard deviation of 256, never beyond +-1020.
  int bell() {
    const uint64_t bits = next();
    int sum = 0;
    for (int i = 0; i < 8; ++i) sum += static_cast<int>(bits >> (8 * i) & 0xFF);
    return (sum - 1020) * 314 / 256;
  }

 private:
  uint64_t state_;
};

// value * e^(k / 16), without floating point: how log-normal sizes are drawn.
int64_t scaled(int64_t value, int k) {
  value <<= 8;
  for (; k > 0; --k) value += value * 4226 >> 16;  // e^(1/16) - 1 = 4226 / 65536
  for (; k < 0; ++k) value -= value * 3971 >> 16;  // 1 - e^(-1/16)
  return value >> 8;
}

// sin(2 pi turn / 1024) * 16384, by Bhaskara's rational approximation: within 0.2 %, in integers.
int sine(int turn) {
  const int t = turn & 1023;
  const int64_t p = static_cast<int64_t>(t & 511) * (512 - (t & 511));
  const auto value = static_cast<int>(16 * p * 16384 / (5 * 512 * 512 - 4 * p));
  return t < 512 ? value : -value;
}
int cosine(int turn) {
  return sine(turn + 256);
}

// A plane of numbers in eighths of a grey level.
struct Plane {
  int width = 0;
  int height = 0;
  std::vector<int16_t> values;

  Plane(int w, int h) : width(w), height(h), values(static_cast<size_t>(w) * static_cast<size_t>(h)) {}
  int16_t* row(int y) { return values.data() + static_cast<size_t>(y) * static_cast<size_t>(width); }
  const int16_t* row(int y) const { return values.data() + static_cast<size_t>(y) * static_cast<size_t>(width); }
};

// Twice the size, or one less: weights 3 and 1, as libjpeg's fancy upsampling.
Plane enlarged(const Plane& small, int width, int height) {
  Plane large(width, height);
  const auto columns = static_cast<size_t>(small.width);
  std::vector<int> blend(columns + 2);
  for (int y = 0; y < height; ++y) {
    const int near_row = y / 2;
    const int far_row = std::clamp(y % 2 == 0 ? near_row - 1 : near_row + 1, 0, small.height - 1);
    const int16_t* a = small.row(near_row);
    const int16_t* b = small.row(far_row);
    for (size_t x = 0; x < columns; ++x) blend[x + 1] = 3 * a[x] + b[x];
    blend[0] = blend[1];
    blend[columns + 1] = blend[columns];
    int16_t* out = large.row(y);
    for (size_t x = 0; x < static_cast<size_t>(width / 2); ++x) {
      out[2 * x] = static_cast<int16_t>((3 * blend[x + 1] + blend[x] + 8) >> 4);
      out[2 * x + 1] = static_cast<int16_t>((3 * blend[x + 1] + blend[x + 2] + 8) >> 4);
    }
    if (width % 2 != 0) out[width - 1] = static_cast<int16_t>((3 * blend[columns] + blend[columns - 1] + 8) >> 4);
  }
  return large;
}

constexpr int kLevels = 7;     // octaves, from one number per 64 pixels to one per pixel
constexpr int kMaskLevel = 4;  // one number per 16 pixels says how much detail there is

void add_noise(Random& random, Plane& plane, int amplitude, const Plane* mask, int level) {
  if (amplitude == 0) return;
  std::array<int, 4> noise{};
  for (int y = 0; y < plane.height; ++y) {
    int16_t* row = plane.row(y);
    const int shift = kMaskLevel - level;
    const int16_t* strength = mask != nullptr && shift >= 0 ? mask->row(y >> shift) : nullptr;
    for (int x = 0; x < plane.width; ++x) {
      if (x % 4 == 0) {
        const uint64_t bits = random.next();
        for (int i = 0; i < 4; ++i) {
          noise[static_cast<size_t>(i)] =
              static_cast<int>(bits >> (16 * i) & 0xFF) + static_cast<int>(bits >> (16 * i + 8) & 0xFF) - 255;
        }
      }
      const int here = strength != nullptr ? amplitude * strength[x >> shift] >> 8 : amplitude;
      row[x] = static_cast<int16_t>(row[x] + (noise[static_cast<size_t>(x % 4)] * here >> 7));
    }
  }
}

// Noise of many octaves, as photos have: amplitude[l] is that of the octave of 2^l pixels.
Plane octaves(Random& random, int width, int height, const std::array<int, kLevels>& amplitude, const Plane* mask,
              int last_level = 0) {
  const auto extent = [](int full, int level) { return (full + (1 << level) - 1) >> level; };
  Plane plane(extent(width, kLevels - 1), extent(height, kLevels - 1));
  for (int level = kLevels - 1;; --level) {
    add_noise(random, plane, amplitude[static_cast<size_t>(level)], mask, level);
    if (level == last_level) return plane;
    plane = enlarged(plane, extent(width, level - 1), extent(height, level - 1));
  }
}

// How one picture is to be: drawn first, so that the pixels below have no say in it.
struct Look {
  int width = 0;
  int height = 0;
  int hue = 0;        // turn, 0 to 1023
  int direction = 0;  // turn of the texture
  int shape = 0;      // of the largest object
  int h_factor = 1;   // of luma; chroma has 1
  int v_factor = 1;
  bool grey = false;
  bool progressive = false;
  bool optimized = false;
  int restart_rows = 0;
  int quality = 90;
  int roughness = 0;  // of 256: how much of an octave's amplitude the next finer one has
  int grain = 0;      // amplitude of the sensor's noise
};

// Every size between the two is as likely as twice that size.
int64_t large_area(Random& random, const DemoKind& kind) {
  const int64_t smallest = int64_t{kind.min_megapixels} * 1'000'000;
  int steps = 0;
  while (scaled(smallest, steps + 1) <= int64_t{kind.max_megapixels} * 1'000'000) ++steps;
  return scaled(smallest, random.between(0, steps));
}

Look draw_look(Random& random, int label, int classes, const DemoKind& kind) {
  Look look;
  // The attributes of a class: all different for neighbours, and unique as a triple.
  const int used_hues = std::min(classes, kHues);
  const int group = label / used_hues;
  const int hue_step = 1024 / used_hues;
  look.hue = label % used_hues * hue_step + random.bell() * hue_step / 1400;
  look.direction = (label + group) % kDirections * (512 / kDirections) + random.bell() / 24;
  look.shape = (label + group / kDirections) % kShapes;

  int64_t area = 0;
  int aspect = 0;  // long side / short side, of 256
  const int format = random.between(0, 99);
  aspect = format % 10 < 6 ? 341 : format % 10 < 8 ? 384 : format % 10 < 9 ? 256 : random.between(270, 512);
  if (format < 55) {
    area = int64_t{500} * 500 * 256 / aspect;
  } else if (format < 96) {
    area = scaled(220'000, random.bell() * 9 / 256);
  } else {
    area = scaled(850'000, random.bell() * 7 / 256);
  }
  area = std::clamp<int64_t>(area, 20'000, 2'600'000);
  const bool large = kind.min_megapixels > 0;
  if (large) area = large_area(random, kind);
  int64_t long_side = 16;
  while (long_side * long_side * 256 < area * aspect) ++long_side;
  const auto short_side = static_cast<int>(std::max<int64_t>(long_side * 256 / aspect, 16));
  const bool portrait = random.chance(28);
  look.width = portrait ? short_side : static_cast<int>(long_side);
  look.height = portrait ? static_cast<int>(long_side) : short_side;

  const int sampling = random.between(0, 99);
  if (sampling >= 54) look.h_factor = 2;
  if (sampling >= 54 && sampling < 90) look.v_factor = 2;  // 4:2:0; then 4:2:2
  if (sampling >= 96) {                                    // 4:4:0
    look.h_factor = 1;
    look.v_factor = 2;
  }
  if (kind.subsampling != DemoSubsampling::mixed) {
    look.h_factor = look.v_factor = kind.subsampling == DemoSubsampling::chroma_420 ? 2 : 1;
  }
  look.grey = random.chance(2);
  look.progressive = random.chance(3);
  look.optimized = random.chance(35);
  look.restart_rows = random.chance(2) ? 1 : 0;
  constexpr std::array<int, 16> qualities = {70, 80, 85, 85, 88, 90, 90, 90, 92, 92, 93, 94, 95, 95, 96, 96};
  look.quality = qualities[static_cast<size_t>(random.between(0, 15))];
  look.roughness = std::clamp(236 + random.bell() * 20 / 256, 100, 252);
  look.grain = static_cast<int>(scaled(46, random.bell() * 14 / 256));
  if (large) {  // a camera's pixels show less than those of a photo made small
    look.roughness = look.roughness * 3 / 4;
    look.grain /= 4;
  }
  return look;
}

struct Object {
  int kind = 0;
  int x = 0;  // centre and radius in 1/16 pixel
  int y = 0;
  int radius = 16;
  int turn = 0;
  int luma = 0;  // added, in eighths
  int cb = 0;    // taken on, in eighths
  int cr = 0;
  int softness = 1;  // width of the edge in pixels
};

// Distance inwards from the object's edge, in 1/16 pixel; exact near the edge, where it matters.
int depth_in(const Object& object, int u, int v) {
  const int r = object.radius;
  const int au = std::abs(u);
  const int av = std::abs(v);
  const auto disc = [&] {
    const int64_t squares = int64_t{r} * r - int64_t{u} * u - int64_t{v} * v;
    return static_cast<int>(squares / (2 * r));
  };
  switch (object.kind) {
    case 0: return disc();
    case 1: return r * 7 / 8 - std::max(au, av);
    case 2: return std::min(r - au, r / 4 - av);
    case 3: {
      const int inside = disc();
      return std::min(inside, r / 4 - inside);
    }
    case 4: return std::min({r / 2 + v, r / 2 - (222 * u + 128 * v) / 256, r / 2 - (128 * v - 222 * u) / 256});
    default: return std::max(std::min(r - au, r / 3 - av), std::min(r / 3 - au, r - av));
  }
}

// One picture, row by row.
class PhotoPainter {
 public:
  PhotoPainter(Random& random, const Look& look)
      : look_(look),
        mask_(draw_mask(random, look)),
        luma_(draw_luma(random, look, mask_)),
        cb_(draw_chroma(random, look)),
        cr_(draw_chroma(random, look)) {
    const auto size = static_cast<size_t>(look.width);
    y_.resize(size);
    u_.resize(size);
    v_.resize(size);
    base_ = 8 * random.between(80, 165);
    gradient_x_ = random.bell() * 450 / look.width;  // of 1/256 eighths per pixel
    gradient_y_ = random.bell() * 450 / look.height;
    const int saturation = 8 * std::clamp(30 + random.bell() * 8 / 256, 6, 48);
    base_cb_ = cosine(look.hue) * saturation >> 14;
    base_cr_ = sine(look.hue) * saturation >> 14;
    const int tint = random.between(0, 1023);  // of the light: moves every colour of the picture
    base_cb_ += cosine(tint) * 40 >> 14;
    base_cr_ += sine(tint) * 40 >> 14;

    // The texture of the class.
    const int frequency = random.between(900, 5200) * 500 / std::max(look.width, look.height);
    step_x_ = cosine(look.direction) * frequency >> 14;
    step_y_ = sine(look.direction) * frequency >> 14;
    stripe_ = random.between(30, 130);
    phase_ = random.between(0, 65535);

    const int small_side = std::min(look.width, look.height);
    const int clutter = random.between(1, 6);
    for (int i = 0; i < clutter; ++i) {
      // In statements of their own: the order in which arguments are evaluated is the compiler's choice.
      const int kind = random.between(0, kShapes - 1);
      const int radius = random.between(small_side / 40, small_side / 7);
      add_object(random, kind, radius, false);
    }
    add_object(random, look.shape, random.between(small_side / 6, small_side * 2 / 5), true);
  }

  // Writes row y as YCbCr triples, or as grey.
  void paint(int y, uint8_t* out) {
    const int16_t* detail = luma_.row(y);
    const int16_t* cb = cb_.row(y >> 1);
    const int16_t* cr = cr_.row(y >> 1);
    const int16_t* mask = mask_.row(y >> kMaskLevel);
    const int middle_x = look_.width / 2;
    int phase = phase_ + y * step_y_;
    int light = base_ * 256 + (y - look_.height / 2) * gradient_y_ - middle_x * gradient_x_;
    for (int x = 0; x < look_.width; ++x) {
      const auto i = static_cast<size_t>(x);
      const int wave = std::abs((phase >> 4 & 4095) - 2048) - 1024;  // a triangle wave, +-1024
      const int texture = (wave * stripe_ >> 10) * mask[x >> kMaskLevel] >> 8;
      y_[i] = (light >> 8) + detail[x] + texture;
      u_[i] = base_cb_ + cb[x >> 1];
      v_[i] = base_cr_ + cr[x >> 1];
      phase += step_x_;
      light += gradient_x_;
    }
    for (const Object& object : objects_) paint_object(object, y);
    const auto byte = [](int value, int zero) {
      return static_cast<uint8_t>(std::clamp(((value + 4) >> 3) + zero, 0, 255));
    };
    for (size_t i = 0; i < y_.size(); ++i) {
      *out++ = byte(y_[i], 0);
      if (look_.grey) continue;
      *out++ = byte(u_[i], 128);
      *out++ = byte(v_[i], 128);
    }
  }

 private:
  // How much detail a place has, of 256: sky next to leaves, sharp next to out of focus.
  static Plane draw_mask(Random& random, const Look& look) {
    Plane mask = octaves(random, look.width, look.height, {0, 0, 0, 0, 10, 30, 130}, nullptr, kMaskLevel);
    for (int16_t& value : mask.values) value = static_cast<int16_t>(std::clamp(170 + value, 20, 420));
    return mask;
  }
  static Plane draw_luma(Random& random, const Look& look, const Plane& mask) {
    std::array<int, kLevels> amplitude{};
    int octave = 170;
    for (size_t level = kLevels; level-- > 0;) {
      amplitude[level] = octave;
      octave = octave * look.roughness >> 8;
    }
    Plane luma = octaves(random, look.width, look.height, amplitude, &mask);
    add_noise(random, luma, look.grain, nullptr, 0);
    return luma;
  }
  // At half size, as eyes and cameras have it.
  static Plane draw_chroma(Random& random, const Look& look) {
    return octaves(random, look.width, look.height, {0, 7, 11, 16, 24, 36, 60}, nullptr, 1);
  }

  void add_object(Random& random, int kind, int radius, bool main) {
    Object object;
    object.kind = kind;
    object.radius = 16 * std::max(radius, 2);
    const int margin = main ? 4 : 0;  // the main object's centre keeps to the middle half
    object.x = 16 * random.between(look_.width * margin / 16, look_.width - look_.width * margin / 16);
    object.y = 16 * random.between(look_.height * margin / 16, look_.height - look_.height * margin / 16);
    object.turn = main ? random.bell() / 12 : random.between(0, 1023);
    object.luma = 8 * (random.chance(50) ? random.between(22, 60) : -random.between(22, 60));
    const int hue = main ? look_.hue + 512 + random.bell() / 8 : random.between(0, 1023);
    const int saturation = 8 * random.between(8, 50);
    object.cb = cosine(hue) * saturation >> 14;
    object.cr = sine(hue) * saturation >> 14;
    object.softness = random.chance(60) ? 1 : random.between(2, 9);
    objects_.push_back(object);
  }

  void paint_object(const Object& object, int y) {
    const int dy = 16 * y - object.y;
    const int reach = object.radius * 3 / 2 + 16 * object.softness;  // a square's corner is sqrt(2) away
    if (std::abs(dy) > reach) return;
    const int first = std::max((object.x - reach) / 16, 0);
    const int last = std::min((object.x + reach) / 16, look_.width - 1);
    const int c = cosine(object.turn);
    const int s = sine(object.turn);
    for (int x = first; x <= last; ++x) {
      const int64_t dx = 16 * x - object.x;
      const auto u = static_cast<int>((dx * c + int64_t{dy} * s) >> 14);
      const auto v = static_cast<int>((int64_t{dy} * c - dx * s) >> 14);
      const int cover = std::clamp(128 + depth_in(object, u, v) * 16 / object.softness, 0, 256);
      if (cover == 0) continue;
      const auto i = static_cast<size_t>(x);
      // Shaded from one side, as round things are.
      y_[i] += cover * (object.luma + (u - v) * 96 / object.radius) >> 8;
      u_[i] += cover * (object.cb - u_[i]) >> 8;
      v_[i] += cover * (object.cr - v_[i]) >> 8;
    }
  }

  const Look& look_;
  Plane mask_;
  Plane luma_;
  Plane cb_;
  Plane cr_;
  std::vector<int> y_;
  std::vector<int> u_;
  std::vector<int> v_;
  std::vector<Object> objects_;
  int base_ = 0;
  int gradient_x_ = 0;
  int gradient_y_ = 0;
  int base_cb_ = 0;
  int base_cr_ = 0;
  int step_x_ = 0;
  int step_y_ = 0;
  int stripe_ = 0;
  int phase_ = 0;
};

// libjpeg reports errors by leaving through error_exit. Everything with a destructor lives outside the frame that
// setjmp returns to twice.
struct Encoder {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors{};
  std::jmp_buf back{};
  std::array<char, JMSG_LENGTH_MAX> message{};
  unsigned char* file = nullptr;
  unsigned long size = 0;  // NOLINT: libjpeg's type

  Encoder() {
    jpeg.err = jpeg_std_error(&errors);
    jpeg.client_data = this;
    errors.error_exit = [](j_common_ptr info) {
      auto* self = static_cast<Encoder*>(info->client_data);
      info->err->format_message(info, self->message.data());
      std::longjmp(self->back, 1);
    };
    errors.output_message = [](j_common_ptr) {};
  }
  ~Encoder() {
    jpeg_destroy_compress(&jpeg);
    std::free(file);
  }
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;
};

bool encode(Encoder& encoder, const Look& look, const uint8_t* pixels) {
  if (setjmp(encoder.back) != 0) return false;
  jpeg_compress_struct& jpeg = encoder.jpeg;
  jpeg_create_compress(&jpeg);
  jpeg_mem_dest(&jpeg, &encoder.file, &encoder.size);
  jpeg.image_width = static_cast<JDIMENSION>(look.width);
  jpeg.image_height = static_cast<JDIMENSION>(look.height);
  jpeg.input_components = look.grey ? 1 : 3;
  jpeg.in_color_space = look.grey ? JCS_GRAYSCALE : JCS_YCbCr;
  jpeg_set_defaults(&jpeg);
  jpeg_set_quality(&jpeg, look.quality, TRUE);
  if (!look.grey) {
    jpeg.comp_info[0].h_samp_factor = look.h_factor;
    jpeg.comp_info[0].v_samp_factor = look.v_factor;
  }
  jpeg.optimize_coding = look.optimized ? TRUE : FALSE;
  jpeg.restart_in_rows = look.restart_rows;
  if (look.progressive) jpeg_simple_progression(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  const size_t row_bytes = static_cast<size_t>(look.width) * (look.grey ? 1 : 3);
  while (jpeg.next_scanline < jpeg.image_height) {
    JSAMPROW row = const_cast<JSAMPROW>(pixels + jpeg.next_scanline * row_bytes);
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  return true;
}

std::string padded(int64_t number, size_t digits) {
  std::string text = std::to_string(number);
  return std::string(digits - std::min(digits, text.size()), '0') + text;
}

std::string class_name(int64_t label, int classes) {
  return "class" + padded(label, std::max<size_t>(2, std::to_string(classes - 1).size()));
}

// Nothing of the usual mixture, so that sets made before there were kinds are still known.
std::string describe(const DemoKind& kind) {
  std::string text;
  if (kind.subsampling != DemoSubsampling::mixed) {
    text += kind.subsampling == DemoSubsampling::chroma_420 ? "subsampling: 4:2:0\n" : "subsampling: 4:4:4\n";
  }
  if (kind.min_megapixels > 0) {
    text += "megapixels: " + std::to_string(kind.min_megapixels) + " " + std::to_string(kind.max_megapixels) + "\n";
  }
  return text;
}

std::string describe(const DemoDataOptions& options) {
  return "penstock demo data, layout 1\ncount: " + std::to_string(options.count) +
         "\nval_count: " + std::to_string(options.val_count) + "\nclasses: " + std::to_string(options.classes) +
         "\nseed: " + std::to_string(options.seed) + "\n" + describe(options.kind);
}

void check(const DemoDataOptions& options) {
  const auto refuse = [](const std::string& what, const std::string& remedy) {
    throw Error(ErrorKind::usage, "cannot make demo data: " + what, remedy);
  };
  if (options.folder.empty()) refuse("no folder is named", "say where it shall be");
  if (options.classes < 1 || options.classes > kMaxClasses) {
    refuse(std::to_string(options.classes) + " classes", "1 to " + std::to_string(kMaxClasses) + " are possible");
  }
  const int low = options.kind.min_megapixels;
  const int high = options.kind.max_megapixels;
  if ((low != 0 || high != 0) && (low < 1 || high < low || high > kMaxMegapixels)) {
    refuse("pictures of " + std::to_string(low) + " to " + std::to_string(high) + " megapixels",
           "the smaller number first, 1 to " + std::to_string(kMaxMegapixels));
  }
  const auto possible = [&](int64_t count) { return count >= options.classes && count <= 100'000'000; };
  for (const int64_t count : {options.count, options.val_count}) {
    if (!possible(count) && !(count == 0 && options.count != 0)) {
      refuse(std::to_string(count) + " pictures for " + std::to_string(options.classes) + " classes",
             "every class needs at least one picture in each split");
    }
  }
}

// Makes the folder ours, or refuses one that is somebody else's.
void claim_folder(const DemoDataOptions& options) {
  namespace fs = std::filesystem;
  const std::string manifest = options.folder + "/" + kManifestName;
  const std::string wanted = describe(options);
  std::error_code code;
  if (fs::exists(manifest, code)) {
    std::vector<std::byte> found;
    const bool read = posix_file_system().read_file(manifest, 4096, found);
    const std::string text(reinterpret_cast<const char*>(found.data()), found.size());
    if (read && text == wanted) return;
    throw Error(ErrorKind::usage,
                "'" + options.folder + "' holds demo data made with other options:\n" + text + "wanted:\n" + wanted,
                "choose another folder, or remove this one first");
  }
  fs::create_directories(options.folder, code);
  if (code) {
    throw Error(ErrorKind::runtime, "cannot create the folder '" + options.folder + "': " + code.message(),
                "check the path and its permissions");
  }
  if (!posix_file_system().list_directory(options.folder).entries.empty()) {
    throw Error(ErrorKind::usage, "'" + options.folder + "' is not empty and holds no demo data",
                "choose an empty or new folder");
  }
  write_file(manifest, {as_bytes_of(wanted)});
}

struct Task {
  const char* split;
  int64_t index;
};

}  // namespace

std::vector<std::byte> make_demo_picture(const std::string& split, int64_t index, int classes, uint64_t seed,
                                         const DemoKind& kind) {
  Random mixer(seed);
  const uint64_t of_split = Random(mixer.next() ^ (split == "val" ? 0x76616CULL : 0)).next();
  Random random(Random(of_split + static_cast<uint64_t>(index) * 0xD1342543DE82EF95ULL).next());
  const Look look = draw_look(random, static_cast<int>(index % classes), classes, kind);
  PhotoPainter painter(random, look);
  const size_t row_bytes = static_cast<size_t>(look.width) * (look.grey ? 1 : 3);
  std::vector<uint8_t> pixels(row_bytes * static_cast<size_t>(look.height));
  for (int y = 0; y < look.height; ++y) painter.paint(y, pixels.data() + static_cast<size_t>(y) * row_bytes);
  Encoder encoder;
  if (!encode(encoder, look, pixels.data())) {
    throw Error(ErrorKind::runtime, std::string("cannot encode a demo picture: ") + encoder.message.data());
  }
  const auto* first = reinterpret_cast<const std::byte*>(encoder.file);
  return {first, first + encoder.size};
}

DemoDataResult make_demo_data(const DemoDataOptions& options) {
  namespace fs = std::filesystem;
  check(options);
  claim_folder(options);

  // What is missing: names appear only when a picture is whole, so what is there need not be made again.
  std::vector<Task> tasks;
  const auto file_name = [](int64_t index) { return padded(index, 6) + ".jpg"; };
  const auto folder_of = [&](const char* split, int64_t index) {
    return options.folder + "/" + split + "/" + class_name(index % options.classes, options.classes);
  };
  DemoDataResult result;
  for (const char* split : {"train", "val"}) {
    const int64_t count = split[0] == 't' ? options.count : options.val_count;
    for (int64_t label = 0; label < std::min<int64_t>(options.classes, count); ++label) {
      const std::string folder = folder_of(split, label);
      std::error_code code;
      fs::create_directories(folder, code);
      if (code) throw Error(ErrorKind::runtime, "cannot create the folder '" + folder + "': " + code.message());
      std::vector<std::string> there;
      for (DirectoryEntry& entry : posix_file_system().list_directory(folder).entries) {
        there.push_back(std::move(entry.name));
      }
      std::sort(there.begin(), there.end());
      for (int64_t index = label; index < count; index += options.classes) {
        if (std::binary_search(there.begin(), there.end(), file_name(index))) {
          ++result.reused;
        } else {
          tasks.push_back({split, index});
        }
      }
    }
  }

  Mutex mutex;  // guards the result and calls of progress
  const size_t threads = options.threads > 0 ? static_cast<size_t>(options.threads) : number_of_cores();
  for_each_on_threads(tasks.size(), threads, [&] {
    return [&](size_t i) {
      const Task& task = tasks[i];
      const std::vector<std::byte> picture =
          make_demo_picture(task.split, task.index, options.classes, options.seed, options.kind);
      const std::string path = folder_of(task.split, task.index) + "/" + file_name(task.index);
      const std::string partial = path + ".partial";  // no image's extension, so nobody takes it for one
      write_file(partial, {picture});
      std::error_code code;
      fs::rename(partial, path, code);
      if (code) throw Error(ErrorKind::runtime, "cannot name '" + path + "': " + code.message());
      const MutexLock lock(mutex);
      ++result.made;
      result.bytes += static_cast<int64_t>(picture.size());
      if (options.progress) {
        options.progress(result.reused + result.made, result.reused + static_cast<int64_t>(tasks.size()));
      }
    };
  });
  return result;
}

}  // namespace penstock
