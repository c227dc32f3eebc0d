// The command line: one binary, one subcommand a job. Parsing only; the work is in commands/ and the processes.
#pragma once

namespace althing::actors {

// Returns the process's exit code.
int run_command_line(int argc, char** argv);

}  // namespace althing::actors
