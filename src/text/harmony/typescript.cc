#include "text/harmony/typescript.h"

#include <fmt/format.h>

#include <algorithm>

namespace rota::harmony {
namespace {

const OrderedJson* member(const OrderedJson& schema, const char* name) {
  if (!schema.is_object()) return nullptr;
  const auto found = schema.find(name);
  return found == schema.end() ? nullptr : &*found;
}

const std::string* text_member(const OrderedJson& schema, const char* name) {
  const OrderedJson* value = member(schema, name);
  return value != nullptr && value->is_string() ? &value->get_ref<const std::string&>() : nullptr;
}

const OrderedJson* list_member(const OrderedJson& schema, const char* name) {
  const OrderedJson* value = member(schema, name);
  return value != nullptr && value->is_array() ? value : nullptr;
}

bool is_enum(const OrderedJson& schema) {
  const OrderedJson* values = list_member(schema, "enum");
  return values != nullptr && !values->empty();
}

std::string compact(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

// "default: ..."; a string is quoted unless it is one of an enum. Empty without a default.
std::string default_note(const OrderedJson& schema) {
  const OrderedJson* value = member(schema, "default");
  if (value == nullptr) return "";
  if (!value->is_string()) return "default: " + compact(*value);
  const auto& text = value->get_ref<const std::string&>();
  return is_enum(schema) ? fmt::format("default: {}", text) : fmt::format("default: \"{}\"", text);
}

std::string nullable_type(const OrderedJson& schema, const std::string& indent) {
  std::string type = typescript_type(schema, indent);
  const OrderedJson* nullable = member(schema, "nullable");
  const bool can_be_null = nullable != nullptr && nullable->is_boolean() && nullable->get<bool>();
  if (can_be_null && type.find("null") == std::string::npos) type += " | null";
  return type;
}

void add_note(std::string& notes, const std::string& note) {
  if (note.empty()) return;
  notes += notes.empty() ? " // " : " ";
  notes += note;
}

std::string string_type(const OrderedJson& schema) {
  std::string out;
  if (is_enum(schema)) {
    for (const OrderedJson& value : *list_member(schema, "enum")) {
      if (!value.is_string()) continue;
      if (!out.empty()) out += " | ";
      out += fmt::format("\"{}\"", value.get_ref<const std::string&>());
    }
  }
  return out.empty() ? "string" : out;
}

// A property whose type is one of several: each on its own line.
std::string one_of_property(const std::string& head, const OrderedJson& schema,
                            const OrderedJson& variants, const std::string& indent) {
  std::string out;
  const std::string* description = text_member(schema, "description");
  const std::string* first = variants.empty() ? nullptr : text_member(variants[0], "description");
  const bool same_as_first = description != nullptr && first != nullptr && *description == *first;
  if (description != nullptr && !same_as_first) out += indent + "// " + *description + "\n";
  const std::string note = default_note(schema);
  if (!note.empty()) out += indent + "// " + note + "\n";
  out += head + ":\n";
  bool is_first = true;
  for (const OrderedJson& variant : variants) {
    out += indent + " | " + nullable_type(variant, indent + "   ");
    std::string notes;
    const std::string* own = text_member(variant, "description");
    const bool repeats = description != nullptr && (is_first || (own && *own == *description));
    if (own != nullptr && !repeats) add_note(notes, *own);
    add_note(notes, default_note(variant));
    out += notes + "\n";
    is_first = false;
  }
  return out + indent + ",\n";
}

std::string property(const std::string& name, const OrderedJson& schema, bool required,
                     const std::string& indent) {
  std::string out;
  const OrderedJson* variants = list_member(schema, "oneOf");
  if (const std::string* title = text_member(schema, "title"); title != nullptr) {
    out += indent + "// " + *title + "\n" + indent + "//\n";
  }
  const std::string* description = text_member(schema, "description");
  if (description != nullptr && member(schema, "oneOf") == nullptr) {
    out += indent + "// " + *description + "\n";
  }
  if (const OrderedJson* examples = list_member(schema, "examples");
      examples != nullptr && !examples->empty()) {
    out += indent + "// Examples:\n";
    for (const OrderedJson& example : *examples) {
      if (!example.is_string()) continue;
      out += indent + "// - \"" + example.get<std::string>() + "\"\n";
    }
  }
  const std::string head = indent + name + (required ? "" : "?");
  if (variants != nullptr) return out + one_of_property(head, schema, *variants, indent);
  out += head + ": " + nullable_type(schema, indent + "    ") + ",";
  const std::string note = default_note(schema);
  if (!note.empty()) out += " // " + note;
  return out + "\n";
}

std::string object_type(const OrderedJson& schema, const std::string& indent) {
  std::string out;
  if (const std::string* description = text_member(schema, "description"); description != nullptr) {
    out += indent + "// " + *description + "\n";
  }
  out += "{\n";
  const OrderedJson* properties = member(schema, "properties");
  const OrderedJson* required = list_member(schema, "required");
  if (properties != nullptr && properties->is_object()) {
    for (const auto& [name, value] : properties->items()) {
      const bool needed =
          required != nullptr && std::ranges::find(*required, OrderedJson(name)) != required->end();
      out += property(name, value, needed, indent);
    }
  }
  return out + indent + "}";
}

std::string one_of_type(const OrderedJson& variants, const std::string& indent) {
  std::string out;
  for (const OrderedJson& variant : variants) {
    out += "\n" + indent + " | " + nullable_type(variant, indent + "   ");
    std::string notes;
    if (const std::string* own = text_member(variant, "description"); own != nullptr) {
      add_note(notes, *own);
    }
    add_note(notes, default_note(variant));
    out += notes;
  }
  return out;
}

std::string union_type(const OrderedJson& types) {
  std::string out;
  for (const OrderedJson& type : types) {
    if (!type.is_string()) continue;
    if (!out.empty()) out += " | ";
    out += type == "integer" ? "number" : type.get<std::string>();
  }
  return out;
}

// Each line of a text as a comment.
std::string comment(const std::string& text) {
  std::string out;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += "// " + text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return out;
}

}  // namespace

std::string typescript_type(const OrderedJson& schema, const std::string& indent) {
  if (const OrderedJson* variants = list_member(schema, "oneOf"); variants != nullptr) {
    return one_of_type(*variants, indent);
  }
  if (const OrderedJson* types = list_member(schema, "type"); types != nullptr) {
    if (std::string out = union_type(*types); !out.empty()) return out;
  }
  const std::string* type = text_member(schema, "type");
  if (type == nullptr) return "any";
  if (*type == "object") return object_type(schema, indent);
  if (*type == "string") return string_type(schema);
  if (*type == "number" || *type == "integer") return "number";
  if (*type == "boolean") return "boolean";
  if (*type != "array") return "any";
  const OrderedJson* items = member(schema, "items");
  return items != nullptr ? typescript_type(*items, indent) + "[]" : "Array<any>";
}

std::string tools_section(const std::vector<ChatTool>& tools) {
  std::string out = "# Tools\n\n## functions\n\nnamespace functions {\n\n";
  for (const ChatTool& tool : tools) {
    out += comment(tool.description);
    out += "type " + tool.name + " = (";
    if (!tool.parameters.is_null()) out += "_: " + typescript_type(tool.parameters, "");
    out += ") => any;\n\n";
  }
  return out + "} // namespace functions";
}

}  // namespace rota::harmony
