// The helper's side of helper.h: the process that starts the program and ends everything at the end.
//
//   const pid_t pid = fork();
//   if (pid == 0) helper_main(socket, session_folder, launcher);    // never returns
//
// One thread, one loop over poll(): the rank's socket, SIGCHLD and SIGTERM as a descriptor, the exec of a program that
//   is being started, the program's relayed output, and the launcher's pidfd.
//
//   idle --spec_end--> starting --exec--> running --the program ended--> idle (another may be started)
//     |                   '--exec failed--> idle
//     '-- stop, hang-up, SIGTERM, or the launcher is gone, at any time:
//           ending: SIGTERM to the tree --no descendant is left, or the grace is over--> SIGKILL to the rest --> exit
//
// A second stop may shorten the grace, never lengthen it. When the launcher is gone the rank is told so by SIGTERM, has
//   the grace too, and gets SIGKILL at its end.
// Everything that ends is reaped here: as subreaper of the program's tree the helper is the parent of all its orphans.
// Thread-safety: a process of its own. Ownership: the socket, the session folder until the end.
// Failure: out of memory, or nonsense on the socket: the end as after a hang-up, at once. The exit status is 0 where
//   nothing is left running.
#pragma once

#include <sys/types.h>

#include <string>

namespace penstock {

// Just after fork(): leaves the rank's session, closes all descriptors but the socket and stdin, stdout and stderr,
// blocks all signals, then runs the loop. `launcher`: see Helper::Options.
[[noreturn]] void helper_main(int socket, const std::string& session_folder, pid_t launcher);

}  // namespace penstock
