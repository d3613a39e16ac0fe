#include "runtime/augment/transform.h"

namespace penstock {

void Transform::draw(DrawStream&, Size, std::vector<int64_t>&) const {}

Verdict Transform::geometry(Size, std::span<const int64_t>, OpList&) const {
  return Verdict::good();
}

std::string Transform::finish(FinishSpec&) const {
  return {};
}

void require_draws(std::span<const int64_t> values, size_t count, const char* transform) {
  if (values.size() != count) {
    throw Error(
        ErrorKind::usage,
        std::string(transform) + " needs " + std::to_string(count) + " draws, not " + std::to_string(values.size()),
        "use the draws that Pipeline::draw made for this pipeline");
  }
}

}  // namespace penstock
