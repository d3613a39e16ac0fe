// The Error that something throws, to look at its kind, message and remedy; a failed test where it throws none.
//
//   const Error error = error_of([&] { loader.set_epoch(-1); });
//   CHECK(error.kind() == ErrorKind::usage);
#pragma once

#include <doctest/doctest.h>

#include "runtime/base/error.h"

namespace penstock {

template <class Act>
Error error_of(Act act) {
  try {
    act();
  } catch (const Error& error) {
    return error;
  }
  FAIL("no error came");
  return Error(ErrorKind::runtime, "none");
}

}  // namespace penstock
