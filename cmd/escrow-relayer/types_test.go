package main

import (
	"encoding/json"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// otherTypes are names that mean different things in different documents, and why that stays.
var otherTypes = map[string]string{
	"status":     "of a problem it is HTTP's number (RFC 9457); of an escrow or an instance it is a word",
	"version":    "of a command it is the number of the format; of an instance it is what was built",
	"expires_at": "of a command it is what the requester signed: a number of seconds; `command show` writes a time for people",
}

// What has one name has one type in everything that others parse: the API, the messages, the commands
// and their answers, and what commands print with --json.
func TestOneTypePerField(t *testing.T) {
	documents := map[string]map[string][]string{}
	var api, answers, commands map[string]any
	text, err := os.ReadFile("../../relayer/web/assets/openapi.yaml")
	require.NoError(t, err)
	require.NoError(t, yaml.Unmarshal(text, &api))
	documents["openapi.yaml"] = schemaTypes(api)
	require.NoError(t, json.Unmarshal(message.Schema, &answers))
	documents["message"] = schemaTypes(answers)
	require.NoError(t, json.Unmarshal(command.Schema, &commands))
	documents["command"] = schemaTypes(commands)
	documents["answer"] = goTypes(reflect.TypeFor[command.Answer]())
	documents["status --json"] = goTypes(reflect.TypeFor[fleet.Fleet]())

	shared := 0
	for _, one := range []string{"message", "command", "answer", "status --json"} {
		require.NotEmpty(t, documents[one], one)
		for name, types := range documents[one] {
			for other, fields := range documents {
				if other == one || fields[name] == nil || otherTypes[name] != "" {
					continue
				}

				shared++
				for _, typ := range types {
					require.Contains(t, fields[name], typ, "%s is %v in %s and %v in %s", name, types, one, fields[name], other)
				}
			}
		}
	}

	require.Greater(t, shared, 60)
	for _, name := range []string{"chain_id", "event_id", "block_number", "block_timestamp", "transaction_hash",
		"log_index"} {
		for of, fields := range documents {
			require.LessOrEqual(t, len(fields[name]), 1, "%s in %s", name, of)
		}
	}
}

// schemaTypes collects the types of the properties in a document, by name.
func schemaTypes(root map[string]any) map[string][]string {
	found := map[string][]string{}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			properties, _ := v["properties"].(map[string]any)
			for name, p := range properties {
				if p, ok := p.(map[string]any); ok {
					addType(found, name, schemaType(root, p))
				}
			}

			for _, child := range v {
				walk(child)
			}
		case []any:
			for _, child := range v {
				walk(child)
			}
		}
	}
	walk(root)

	return found
}

// schemaType is the type of a schema; "time" is a string that is a time. Null beside a type is left out.
func schemaType(root, s map[string]any) string {
	if ref, ok := s["$ref"].(string); ok {
		at := any(root)
		for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
			at = at.(map[string]any)[part]
		}

		return schemaType(root, at.(map[string]any))
	}

	if s["format"] == "date-time" {
		return "time"
	}

	switch typ := s["type"].(type) {
	case string:
		return typ
	case []any:
		return typ[0].(string)
	}

	if list, ok := s["oneOf"].([]any); ok {
		return schemaType(root, list[0].(map[string]any))
	}

	if list, ok := s["enum"].([]any); ok {
		return jsonType(reflect.TypeOf(list[0]))
	}

	return jsonType(reflect.TypeOf(s["const"]))
}

// goTypes collects the types of the fields that encoding/json writes of a type, by name.
func goTypes(root reflect.Type) map[string][]string {
	found := map[string][]string{}
	var walk func(reflect.Type)
	walk = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}

		if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() {
			return
		}

		for _, f := range reflect.VisibleFields(typ) {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue
			}

			written := jsonType(f.Type)
			if options == "string" {
				written = "string"
			}

			addType(found, name, written)
			walk(f.Type)
		}
	}
	walk(root)

	return found
}

// jsonType is how encoding/json writes a type.
func jsonType(typ reflect.Type) string {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}

	switch {
	case typ == reflect.TypeFor[time.Time]():
		return "time"
	case typ == reflect.TypeFor[fleet.Age]():
		return "number"
	}

	switch typ.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "array"
	case reflect.Struct, reflect.Map:
		return "object"
	default:
		return "integer"
	}
}

// addType adds a type to those of a name.
func addType(found map[string][]string, name, typ string) {
	if !slices.Contains(found[name], typ) {
		found[name] = append(found[name], typ)
	}
}
