// A file that a user names for a command's result: a page, a log, a profile.
//
//   check_output_file(path);                 // before minutes of work: is there a folder that can be written to?
//   write_output_file(path, text);           // appears whole, or not at all
//
// What is there and is no plain file (a pipe, /dev/stdout, a device) is written into and never replaced; a link is
//   followed. Failure: Error(usage) where it cannot be, naming the path.
#pragma once

#include <string>

namespace penstock {

void check_output_file(const std::string& path);
void write_output_file(const std::string& path, const std::string& text);

}  // namespace penstock
