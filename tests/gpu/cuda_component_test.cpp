// Loading the CUDA component: one that was compiled with other descriptors is refused before it sees any.
#include "runtime/gpu/cuda_component.h"

#include <doctest/doctest.h>

using namespace penstock;

TEST_CASE("a component of another build is refused") {
  CHECK_THROWS_WITH_AS(cuda_gpus(), doctest::Contains("does not belong to this version of penstock"), Error);
  CHECK_THROWS_WITH_AS(open_cuda_gpu(0), doctest::Contains("does not belong to this version of penstock"), Error);
}

TEST_CASE("a component's number changes with any descriptor's size") {
  struct Larger : PointStep {
    uint64_t more = 0;
  };
  CHECK(number_of_sizes<PartSpan, PointStep>() != number_of_sizes<PartSpan, Larger>());
  CHECK(number_of_sizes<PartSpan, PointStep>() != number_of_sizes<PointStep, PartSpan>());
}
