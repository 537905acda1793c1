package command_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// The schema takes what Parse takes, and refuses nothing else than Parse does.
func TestSchemaAgreesWithParse(t *testing.T) {
	t.Parallel()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(command.Schema))
	require.NoError(t, err)
	compiler := jsonschema.NewCompiler()
	require.NoError(t, compiler.AddResource("command.json", document))
	schema, err := compiler.Compile("command.json")
	require.NoError(t, err)
	valid := func(v any) bool {
		body, err := json.Marshal(v)
		require.NoError(t, err)
		instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
		require.NoError(t, err)

		return schema.Validate(instance) == nil
	}
	good := encode(t, create())
	approve := with(with(good, "kind", "approve"), "args", nil)
	require.True(t, valid(good))
	require.True(t, valid(approve))
	require.True(t, valid([]any{good, approve}))
	require.False(t, valid([]any{}))
	require.False(t, valid(with(good, "kind", "approve")), "args belong to create")

	refused := 0
	for name, values := range bad {
		for _, value := range values {
			if !valid(with(good, name, value)) {
				refused++
				require.Error(t, parse(t, with(good, name, value)), "%s = %#v", name, value)
			}
		}
	}

	require.Greater(t, refused, 60, "all but what a schema cannot say")
}
