// JSON schemas of tools in harmony's TypeScript-like notation.
#pragma once

#include <string>
#include <vector>

#include "text/chat.h"
#include "text/chat_messages.h"

namespace rota::harmony {

// "# Tools", the namespace `functions` and a type for each tool, as the developer message shows
// them.
std::string tools_section(const std::vector<ChatTool>& tools);

// The type of a schema; lines after the first begin with `indent`.
std::string typescript_type(const OrderedJson& schema, const std::string& indent);

}  // namespace rota::harmony
