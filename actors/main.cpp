// The program `althing`.
#include "actors/command_line.hpp"

int main(int argc, char** argv) { return althing::actors::run_command_line(argc, argv); }
