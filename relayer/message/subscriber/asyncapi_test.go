package subscriber_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// asyncapi.yaml names files that exist, places in itself that exist, and every attribute of the messages.
func TestAsyncAPI(t *testing.T) {
	raw, err := os.ReadFile("../asyncapi.yaml")
	require.NoError(t, err)
	var document map[string]any
	require.NoError(t, yaml.Unmarshal(raw, &document))
	resolve := func(ref string) (found any) {
		found = document
		for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
			found = found.(map[string]any)[part]
		}

		return found
	}
	refs := 0
	var walk func(any)
	walk = func(value any) {
		switch value := value.(type) {
		case []any:
			for _, v := range value {
				walk(v)
			}
		case map[string]any:
			if ref, ok := value["$ref"].(string); ok {
				refs++
				if strings.HasPrefix(ref, "#/") {
					require.NotNil(t, resolve(ref), ref)
				} else {
					require.FileExists(t, filepath.Join("..", ref))
				}
			}

			for _, v := range value {
				walk(v)
			}
		}
	}
	walk(document)
	require.Greater(t, refs, 10)

	text, err := json.Marshal(resolve("#/components/schemas/attributes"))
	require.NoError(t, err)
	attributes, err := jsonschema.UnmarshalJSON(strings.NewReader(string(text)))
	require.NoError(t, err)
	attributes.(map[string]any)["additionalProperties"] = false
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("attributes.json", attributes))
	schema, err := c.Compile("attributes.json")
	require.NoError(t, err)
	files, err := filepath.Glob("../testdata/*.attributes.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		values := map[string]any{message.AttrTraceParent: "00-1-2-01", message.AttrGoogleTraceParent: "00-1-2-01"}
		require.NoError(t, json.Unmarshal(text, &values))
		require.NoError(t, schema.Validate(values), file)
	}
}
