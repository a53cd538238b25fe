"""From what people write to checked settings: words and YAML, aliases, presets, fields; `schema` is where to start."""
