// Every MPI return code is looked at: PENSTOCK_MPI_CALL(MPI_Isend(...)) throws an Error that names the call and MPI's
// own text. Communicators carry MPI_ERRORS_RETURN, so errors arrive here instead of ending the program.
#pragma once

#include <mpi.h>

#include <string>

#include "runtime/base/error.h"

namespace penstock::mpi {

inline std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return "MPI error " + std::to_string(code);
  return {text, static_cast<size_t>(length)};
}

inline void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  const std::string name(call, std::string(call).find('('));
  throw Error(ErrorKind::runtime, name + " failed: " + error_text(code), "see the messages of mpirun above");
}

}  // namespace penstock::mpi

#define PENSTOCK_MPI_CALL(call) ::penstock::mpi::check((call), #call)
