// Numbers and tables as text and as HTML, and what a page of a report begins with. Torch-free.
#pragma once

#include <string>
#include <vector>

namespace tessera::train {

/// Rows of cells, the first with the names of the columns.
using Rows = std::vector<std::vector<std::string>>;

/// "3 h 20 min": two units of time at most.
std::string duration_of(double seconds);
/// 135M, 1.24B.
std::string si_text(double value);

/// Columns under one another, the first to the left, the others to the right.
std::string aligned(const Rows& rows);
/// `colours`: a mark of colour_of() before every row's name.
std::string html_table(const Rows& rows, bool colours);
/// Of a page that needs nothing from elsewhere and is light or dark as the reader's system, up to
/// its heading. `refresh`: seconds after which a browser reads it again; 0 = never.
std::string page_begin(const std::string& title, int refresh = 0);

}  // namespace tessera::train
