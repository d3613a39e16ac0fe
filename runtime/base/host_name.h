// The name of this host, for messages and for what one rank tells another about where it runs.
#pragma once

#include <string>

namespace penstock {

// As gethostname() gives it; "this host" where it fails. Safe anywhere.
std::string host_name();

}  // namespace penstock
