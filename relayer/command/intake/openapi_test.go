package intake_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/fusion-prime/escrow-relayer/relayer/command"
)

// What the handler answers has the statuses, types and fields that openapi.yaml gives it.
func TestHTTPFitsTheDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../web/assets/openapi.yaml")
	require.NoError(t, err)
	var whole map[string]any
	require.NoError(t, yaml.Unmarshal(text, &whole))
	at := func(v any, path ...string) any {
		for _, name := range path {
			m, ok := v.(map[string]any)
			require.True(t, ok, "%v", path)
			v = m[name]
		}

		return v
	}
	valid := func(schema any, body []byte) error {
		whole["answer"] = schema
		document, err := json.Marshal(whole)
		require.NoError(t, err)
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(document))
		require.NoError(t, err)
		c := jsonschema.NewCompiler()
		c.DefaultDraft(jsonschema.Draft2020)
		require.NoError(t, c.AddResource("openapi.json", value))
		compiled, err := c.Compile("openapi.json#/answer")
		require.NoError(t, err)
		instance, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
		require.NoError(t, err)

		return compiled.Validate(instance)
	}

	f := setup(t)
	first, stored := f.signed(nil), f.signed(func(c *command.Command) { c.Escrow = common.Address{77} })
	forged := f.signed(nil)
	forged.Signature[64] = 35
	cancel, err := stored.Cancel(f.key)
	require.NoError(t, err)
	id := func(s *command.Signed) string { return "/commands/" + s.ID().Hex() }
	malformed := json.RawMessage(`{"version":7}`)
	for _, c := range []struct {
		method, path, operation string
		body                    any
		status                  int
	}{
		{"POST", "/commands", "/commands", first, 202},
		{"POST", "/commands", "/commands", []any{stored}, 202},
		{"POST", "/commands", "/commands", []any{first, malformed}, 207},
		{"POST", "/commands", "/commands", malformed, 400},
		{"POST", "/commands", "/commands", []any{malformed}, 400},
		{"POST", "/commands", "/commands", forged, 401},
		{"POST", "/commands", "/commands", f.signed(func(c *command.Command) { c.ChainID = 1 }), 403},
		{"POST", "/commands", "/commands",
			f.signed(func(c *command.Command) { c.ExpiresAt, c.Escrow = 1, common.Address{3} }), 408},
		{"POST", "/commands", "/commands", f.signed(nil), 409},
		{"POST", "/commands", "/commands", strings.Repeat("x", 300_000), 413},
		{"GET", id(first), "/commands/{id}", nil, 200},
		{"GET", "/commands/0x12", "/commands/{id}", nil, 400},
		{"GET", "/commands/" + common.Hash{1}.Hex(), "/commands/{id}", nil, 404},
		{"POST", id(stored) + "/cancel", "/commands/{id}/cancel", cancel, 202},
		{"POST", id(stored) + "/cancel", "/commands/{id}/cancel", "x", 400},
		{"POST", id(stored) + "/cancel", "/commands/{id}/cancel", command.Cancellation{Signature: "0x"}, 401},
		{"POST", "/commands/" + common.Hash{1}.Hex() + "/cancel", "/commands/{id}/cancel", cancel, 404},
		{"POST", id(first) + "/cancel", "/commands/{id}/cancel", cancel, 409},
	} {
		name := fmt.Sprintf("%s %s: %d", c.method, c.path, c.status)
		content, err := json.Marshal(c.body)
		require.NoError(t, err)
		w := httptest.NewRecorder()
		f.in.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, c.path, bytes.NewReader(content)))
		require.Equal(t, c.status, w.Code, "%s: %s", name, w.Body)
		documented := at(whole, "paths", c.operation, strings.ToLower(c.method), "responses", fmt.Sprint(c.status))
		require.NotNil(t, documented, name)
		if ref, ok := at(documented, "$ref").(string); ok {
			documented = at(whole, "components", "responses", ref[strings.LastIndex(ref, "/")+1:])
		}

		schema := at(documented, "content", w.Header().Get("Content-Type"), "schema")
		require.NotNil(t, schema, "%s: %s", name, w.Header().Get("Content-Type"))
		require.NoError(t, valid(schema, w.Body.Bytes()), "%s: %s", name, w.Body)
	}
}
