// A session folder that is there before any MPI is (runtime/process/session_folder.h).
//
//   const std::string path = make_session_folder();   // $TMPDIR/penstock-Xy12Ab, 0700
#pragma once

#include <sys/stat.h>

#include <stdexcept>
#include <string>

#include "runtime/process/session_folder.h"

namespace penstock {

inline std::string make_session_folder() {
  const std::string path = new_session_folder_name();
  if (mkdir(path.c_str(), 0700) != 0) throw std::runtime_error("cannot make " + path);
  return path;
}

}  // namespace penstock
