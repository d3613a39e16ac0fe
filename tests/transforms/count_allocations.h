// How often this program called operator new. Linking count_allocations.cpp replaces it.
#pragma once

namespace penstock_test {

long allocations() noexcept;

}  // namespace penstock_test
