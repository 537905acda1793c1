package command

import _ "embed"

// Schema is the JSON Schema of a message.
//
//go:embed schema.json
var Schema []byte
