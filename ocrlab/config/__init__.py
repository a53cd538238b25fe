"""From what people write to checked settings: words and YAML, names, presets, fields. `ocrlab.config.schema` is the door."""
