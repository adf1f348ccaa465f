"""Configuration: base class of sections, YAML loading and rendering, and the root section."""
