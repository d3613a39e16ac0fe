// A real card against the CPU path: the same checks as card_kernels_test, and what only a card can be asked.
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "runtime/gpu/cuda_component.h"
#include "tests/gpu/card_checks.h"
#include "tests/gpu/finisher_checks.h"

namespace {

using namespace penstock;

// Ends the test as skipped where there is none.
std::shared_ptr<Card> first_card() {
  try {
    return open_cuda_card(0);
  } catch (const Error& error) {
    std::printf("SKIP: no card: %s\n", error.what());
    std::exit(77);
  }
}

}  // namespace

TEST_CASE("a card makes the CPU's bytes") {
  const std::shared_ptr<Card> card = first_card();
  std::printf("%s, %lld MB\n", card->info().name.c_str(), static_cast<long long>(card->info().memory_bytes >> 20));
  penstock_test::check_batches(*card);
  penstock_test::check_verdicts(*card);
  penstock_test::check_search(*card);
  penstock_test::check_digests(*card);
  penstock_test::check_shared_tables(*card);
  penstock_test::check_finished(*card);
  penstock_test::check_finisher(card);
  penstock_test::check_shared(card);
  penstock_test::check_inverse(*card);
  penstock_test::check_pixels(*card);
  penstock_test::check_all_colours(*card);
  penstock_test::check_tones(*card);
  penstock_test::check_launches(*card);

  // Memory that is not there is an error by name, and no more than that.
  try {
    const CardBlock block(*card, size_t{1} << 50, CardMemory::device);
    FAIL("a petabyte was allocated");
  } catch (const CardError& error) {
    CHECK(error.fault() == CardFault::out_of_memory);
    CHECK(error.message().find(card->info().name) != std::string::npos);
  }
  penstock_test::check_inverse(*card);
}
