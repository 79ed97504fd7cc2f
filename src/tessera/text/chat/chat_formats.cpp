#include "tessera/text/chat/chat_formats.h"

#include <array>

namespace tessera::text {
namespace {

/// Rejects messages out of turn.
constexpr const char* kTurns = R"({%- for message in messages -%}
{%- set role = message['role'] -%}
{%- set behind_user = (not loop.first) and loop.previtem['role'] == 'user' -%}
{%- set wrong = 'message ' ~ loop.index ~ ': role "' ~ role ~ '"; expected ' -%}
{%- if role not in ['system', 'user', 'assistant'] -%}
{{- raise_exception(wrong ~ '"system", "user" or "assistant"') -}}
{%- elif role == 'system' -%}
{%- if not loop.first -%}{{- raise_exception(wrong ~ '"system" as the first alone') -}}{%- endif -%}
{%- elif behind_user != (role == 'assistant') -%}
{{- raise_exception(wrong ~ ('"assistant" behind "user"' if behind_user else '"user"')) -}}
{%- endif -%}
{%- endfor -%}
)";

struct Format {
  const char* name;
  const char* source;
};

constexpr std::array kFormats = {
    Format{"chatml", R"({%- for message in messages -%}
{{- '<|im_start|>' ~ message['role'] ~ '\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] -}}{{- '<|im_end|>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] -}}{{- '<|im_end|>' -}}
{%- endif -%}
{{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%})"},
    Format{"llama3", R"({{- '<|begin_of_text|>' -}}
{%- for message in messages -%}
{{- '<|start_header_id|>' ~ message['role'] ~ '<|end_header_id|>\n\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] | trim -}}{{- '<|eot_id|>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] | trim -}}{{- '<|eot_id|>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%})"},
    Format{"gemma", R"({{- '<bos>' -}}
{%- for message in messages -%}
{%- if message['role'] == 'assistant' -%}
{{- '<start_of_turn>model\n' -}}
{%- generation -%}{{- message['content'] | trim -}}{{- '<end_of_turn>' -}}{%- endgeneration -%}
{{- '\n' -}}
{%- elif message['role'] == 'user' -%}
{{- '<start_of_turn>user\n' -}}
{%- if loop.index0 == 1 and messages[0]['role'] == 'system' -%}
{{- messages[0]['content'] | trim -}}{{- '\n\n' -}}
{%- endif -%}
{{- message['content'] | trim -}}{{- '<end_of_turn>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%})"},
    Format{"zephyr", R"({%- for message in messages -%}
{{- '<|' ~ message['role'] ~ '|>\n' -}}
{%- if message['role'] == 'assistant' -%}
{%- generation -%}{{- message['content'] -}}{{- '</s>' -}}{%- endgeneration -%}
{%- else -%}
{{- message['content'] -}}{{- '</s>' -}}
{%- endif -%}
{{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- endif -%})"},
};

}  // namespace

std::vector<std::string> chat_format_names() {
  std::vector<std::string> names;
  for (const Format& format : kFormats) names.emplace_back(format.name);
  return names;
}

std::optional<std::string> chat_format_source(std::string_view name) {
  for (const Format& format : kFormats)
    if (format.name == name) return std::string(kTurns) + format.source;
  return std::nullopt;
}

}  // namespace tessera::text
