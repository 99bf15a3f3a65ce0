#include "harness/options/config_toml.h"

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#include <toml++/toml.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <string>

namespace
{

status fail_at(const char *path, const toml::source_region &where, const std::string &what)
{
    std::string line = what;
    std::replace(line.begin(), line.end(), '\n', ' '); /* a message may quote several lines */
    return fail(STATUS_DATA, "--config: %s:%u:%u: %s", path, static_cast<unsigned>(where.begin.line),
                static_cast<unsigned>(where.begin.column), line.c_str());
}

/* Returns true if an option can have the value, or if the value is a list of texts. */
bool is_value(const toml::node &value)
{
    const toml::array *list = value.as_array();
    return value.is_string() || value.is_number() || value.is_boolean() ||
           (list && list->is_homogeneous(toml::node_type::string));
}

status convert(const char *path, std::string_view text, char **out)
{
    const toml::parse_result result = toml::parse(text);
    if (!result) return fail_at(path, result.error().source(), std::string(result.error().description()));
    toml::table options;
    for (const auto &[name, value] : result.table()) {
        const toml::source_position at = name.source().begin;
        toml::table option{{"line", static_cast<int64_t>(at.line)},
                           {"column", static_cast<int64_t>(at.column)}};
        if (!is_value(value))
            return fail_at(path, value.source(),
                           std::string(name.str()) + ": expected a text, a number, true or false");
        option.insert("value", value);
        options.insert(name.str(), std::move(option));
    }
    std::ostringstream json;
    json << toml::json_formatter{options};
    *out = strdup(json.str().c_str());
    return *out ? STATUS_OK : fail(STATUS_SYSTEM, "no memory for %s", path);
}

} // namespace

extern "C" status config_toml_to_json(const char *path, const char *text, size_t length, char **out)
{
    return convert(path, std::string_view(text, length), out);
}
