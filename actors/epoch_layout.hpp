// A grid as one word of a control message or of a command line, as the supervisor announces it: "world:dp:tp:ep:replicas", where replicas are "-" or
// expert numbers and runs of them, as in "4:2:2:2:0-15,3". Reading is strict: what comes back from text is what was written, or an error.
#pragma once

#include <string>
#include <string_view>

#include "actors/membership.hpp"
#include "scheduler/vocabulary/errors.hpp"

namespace althing::actors {

std::string to_text(const Grid& grid);
// Errors: invalid_argument. Whether a model allows the grid is placement's to say.
Result<Grid> grid_of_text(std::string_view text);

// "rank@grid", for a member that starts.
std::string to_text(const Place& place);
// Errors: invalid_argument; also for a rank outside of the grid.
Result<Place> place_of_text(std::string_view text);

}  // namespace althing::actors
