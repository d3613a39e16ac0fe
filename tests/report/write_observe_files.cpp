// Writes one array of each type and a contact sheet into a folder, for observe_files_numpy_test.py.
#include <vector>

#include "runtime/report/contact_sheet.h"
#include "runtime/report/npy.h"

using namespace penstock;

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const std::string folder = std::string(argv[1]) + "/";
  std::vector<uint8_t> u8(2 * 3 * 4 * 5);
  for (size_t i = 0; i < u8.size(); ++i) u8[i] = static_cast<uint8_t>(i * 2);
  const std::vector<int64_t> i64 = {-1, int64_t{1} << 40, 7};
  const std::vector<float> f32 = {0.5F, -2, 3e30F, 0};
  const std::vector<uint16_t> f16 = {0x3C00, 0xC000};   // 1, -2
  const std::vector<uint16_t> bf16 = {0x3F80, 0xC000};  // 1, -2
  const std::vector<uint8_t> flags = {1, 0, 1};
  TensorView images{u8.data(), DType::uint8, {2, 3, 4, 5}, {60, 20, 5, 1}};
  write_npy(folder + "uint8.npy", images);
  write_npy(folder + "channels_last.npy", TensorView{u8.data(), DType::uint8, {2, 3, 4, 5}, {60, 1, 15, 3}});
  write_npy(folder + "int64.npy", NpyType::int64, {3}, i64.data());
  write_npy(folder + "scalar.npy", NpyType::int64, {}, i64.data());
  write_npy(folder + "float32.npy", NpyType::float32, {2, 2}, f32.data());
  write_npy(folder + "float16.npy", NpyType::float16, {2}, f16.data());
  write_npy(folder + "bfloat16.npy", NpyType::bfloat16, {2}, bf16.data());
  write_npy(folder + "bool.npy", NpyType::boolean, {3}, flags.data());
  write_contact_sheet(folder + "sheet.png", images, {.columns = 2, .gap = 1});
  return 0;
}
