package config

import (
	"encoding/json"
	"io"
	"maps"
	"strings"
)

// schemaTypes are the JSON Schema types of the documentation's types. Each may be a text, which
// holds a ${VARIABLE}; YAML reads an address without quotes as a number.
var schemaTypes = map[string]map[string]any{
	"number":   {"type": []string{"number", "string"}},
	"bool":     {"type": []string{"boolean", "string"}},
	"list":     {"type": []string{"array", "string"}, "items": map[string]any{"type": "string"}},
	"text":     {"type": []string{"string", "number"}},
	"duration": {"type": "string", "examples": []string{"30s", "5m"}},
}

// Schema writes the JSON Schema of the configuration file, for editors.
func Schema(w io.Writer) error {
	chain, common := map[string]any{}, map[string]any{}
	for _, v := range Variables() {
		property := map[string]any{"description": v.Help}
		maps.Copy(property, schemaTypes[v.Type])
		if v.Default != "" {
			property["default"] = v.Default
		}

		key := strings.ToLower(v.Name)
		if v.Scope == "" || v.Scope == "chain" {
			chain[key] = property
		}

		if v.Scope == "" || v.Scope == "process" {
			common[key] = property
		}
	}

	common["chains"] = map[string]any{
		"description": "the chains to follow", "type": "array", "minItems": 1,
		"items": map[string]any{
			"type": "object", "additionalProperties": false, "properties": chain,
			"required": []string{"chain_id", "factory_address"},
			"anyOf":    []any{map[string]any{"required": []string{"rpc_urls"}}, map[string]any{"required": []string{"rpc_url"}}},
		},
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")

	return e.Encode(map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema",
		"title":   "Configuration file of escrow-relayer", "type": "object", "additionalProperties": false,
		"properties": common, "required": []string{"chains"},
	})
}
