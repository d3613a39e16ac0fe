// A process and everything under it, by /proc, and what an exit status means in words.
//
//   for (pid_t pid : descendants(getpid())) ...
//   throw Error(ErrorKind::runtime, "'train.py' " + describe_status(status));   // "'train.py' was killed by SIGSEGV"
//
// Purpose: a training program may start shells, workers and daemons of its own; ending it means ending all of them. A
//   subreaper keeps them its descendants whatever they do (double fork, setsid), so a walk finds them.
// Races: processes may fork while we look. end_descendants() therefore repeats until nothing is left; a single
//   descendants() is a snapshot.
// Thread-safety: no shared state; but end_descendants() reaps children, so one thread of a process may use it.
// Failure: a process that vanishes during the walk is left out; nothing throws but std::bad_alloc.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock {

// Children, their children and so on; parents before their children; zombies included until they are reaped.
std::vector<pid_t> descendants(pid_t root);

// Sends `signal` to every descendant; how many took it.
int signal_descendants(pid_t root, int signal);

// SIGKILL to every descendant of this process, reaping them, again and again until none is left or `limit_s` is over
// (a process stuck in the kernel cannot be killed by anyone). True when none is left, not even a zombie. `reaped` is
// called for each child of ours that ended, with its status. Those in `spared`, and what is below them, go on.
bool end_descendants(double limit_s, const std::function<void(pid_t, int)>& reaped = {},
                     const std::set<pid_t>& spared = {});

// Whether a process that we may look at, zombies aside, has `text` on its command line or in its environment.
bool any_process_with(const std::string& text);
bool process_has(pid_t pid, const std::string& text);

// What `name` stood for in the environment of each child of `parent` when it began; zombies and children without it left out.
std::vector<std::string> environment_of_children(pid_t parent, const std::string& name);
// Whether `parent` may be about to start another child: one of its threads is not asleep, or a child of it has not come to
// the program that it is to run. On a busy machine it may wait for a core for seconds between two children.
bool may_start_children(pid_t parent);

// The status of waitpid() of a process that is ending or has ended, as long as nobody has collected it: of somebody else's
// child a matter of luck. Nothing where it is gone, still runs, or exits with 0.
std::optional<int> status_left_by(pid_t pid);

// "exited with status 3", "was killed by SIGSEGV", for a status of waitpid().
std::string describe_status(int status);
// "SIGTERM"; "signal 42" for one without a usual name.
std::string signal_name(int signal);
// The status a shell would show: the code, or 128 + the signal.
int shell_code(int status);

}  // namespace penstock
