package web

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/fusion-prime/escrow-relayer/internal/testfleet"
	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

// document is what the tests need of openapi.yaml.
type document struct {
	Paths      map[string]pathItem
	Components struct {
		Parameters map[string]parameter
		Responses  map[string]response
		Schemas    map[string]any
	}
}

type pathItem struct {
	Get *operation
}

type operation struct {
	OperationID string `yaml:"operationId"`
	Summary     string
	Parameters  []parameter
	Responses   map[string]response
}

type parameter struct {
	Ref  string `yaml:"$ref"`
	Name string
	In   string
}

type response struct {
	Ref     string `yaml:"$ref"`
	Content map[string]struct {
		Schema map[string]any
	}
}

func last(ref string) string { return ref[strings.LastIndex(ref, "/")+1:] }

// spec reads openapi.yaml, with references to parameters and responses resolved. The tests of
// relayer/command/intake see to /commands.
func spec(t *testing.T) document {
	t.Helper()
	var d document
	require.NoError(t, yaml.Unmarshal(openAPI, &d))
	maps.DeleteFunc(d.Paths, func(path string, _ pathItem) bool { return strings.HasPrefix(path, "/commands") })
	for _, item := range d.Paths {
		for n, p := range item.Get.Parameters {
			if p.Ref != "" {
				item.Get.Parameters[n] = d.Components.Parameters[last(p.Ref)]
			}
		}

		for status, r := range item.Get.Responses {
			if r.Ref != "" {
				item.Get.Responses[status] = d.Components.Responses[last(r.Ref)]
			}
		}
	}

	return d
}

// schemas compiles the schema of an answer; references lead into the document.
func schemas(t *testing.T) func(schema map[string]any) *jsonschema.Schema {
	t.Helper()
	var whole map[string]any
	require.NoError(t, yaml.Unmarshal(openAPI, &whole))

	return func(schema map[string]any) *jsonschema.Schema {
		whole["answer"] = schema
		text, err := json.Marshal(whole)
		require.NoError(t, err)
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		require.NoError(t, err)
		c := jsonschema.NewCompiler()
		c.DefaultDraft(jsonschema.Draft2020)
		c.AssertFormat()
		require.NoError(t, c.AddResource("openapi.json", value))
		compiled, err := c.Compile("openapi.json#/answer")
		require.NoError(t, err)

		return compiled
	}
}

func TestDocumentHasTheRoutesOfTheServer(t *testing.T) {
	t.Parallel()
	s, _ := bare(t, broken(t))
	served, written := []string{"/healthz", "/readyz", "/metrics"}, []string(nil) // the Front's
	for pattern := range s.routes() {
		served = append(served, strings.TrimSuffix(pattern, "{$}"))
	}

	for path, item := range spec(t).Paths {
		written = append(written, path)
		require.NotNil(t, item.Get, path)
		require.NotEmpty(t, item.Get.OperationID, path)
		require.NotEmpty(t, item.Get.Summary, path)
	}

	require.ElementsMatch(t, served, written)
	r := get(t, s.handler, "/openapi.yaml")
	require.Equal(t, "application/yaml", r.Header.Get("Content-Type"))
	require.Equal(t, strings.TrimSpace(string(openAPI)), body(t, r))
}

// Every answer has exactly the fields that the document gives it: the schemas allow no others and require all.
func TestAnswersFitTheDocument(t *testing.T) {
	t.Parallel()
	w := setup(t)
	sessions := w.fleet(3)
	w.escrows(5)
	w.kill("relayer-2", sessions[2], 20*time.Minute)
	w.Own("relayer-1", 0)
	w.Own("", 1)
	w.Finds(testfleet.Escrow{Address: addressOf(500), Slot: 1, Block: 5, Late: true})
	well := mounted(t, FrontConfig{}, w.server()).Handler()
	sick, source := bare(t, broken(t))
	source.set(func(i *fleet.Self) { i.Node = errGone })
	gone := mounted(t, FrontConfig{}, sick).Handler()

	d, compile := spec(t), schemas(t)
	covered := map[string]bool{}
	for _, c := range []struct {
		path, url, status string
		h                 http.Handler
	}{
		{"/", "/", "200", well},
		{"/", "/?escrow=" + addressOf(1), "200", well},
		{"/", "/?escrow=0x", "400", well},
		{"/", "/?escrow=" + addressOf(77), "404", well},
		{"/", "/?escrow=" + addressOf(1), "503", gone},
		{"/healthz", "/healthz", "200", well},
		{"/readyz", "/readyz", "200", well},
		{"/readyz", "/readyz", "503", gone},
		{"/metrics", "/metrics", "200", well},
		{"/status", "/status", "200", well},
		{"/status", "/status", "200", gone},
		{"/openapi.yaml", "/openapi.yaml", "200", well},
	} {
		answer := get(t, c.h, c.url)
		written, ok := d.Paths[c.path].Get.Responses[c.status]
		require.True(t, ok, "%s %s is not in the document", c.path, c.status)
		text := body(t, answer)
		require.Equal(t, c.status, answer.Status[:3], "%s: %s", c.url, text)
		covered[c.path+" "+c.status] = true
		kind, _, _ := strings.Cut(answer.Header.Get("Content-Type"), ";")
		content, ok := written.Content[kind]
		require.True(t, ok, "%s %s answers %s", c.path, c.status, kind)
		if strings.HasSuffix(kind, "json") {
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			require.NoError(t, err)
			require.NoError(t, compile(content.Schema).Validate(value), "%s: %s", c.url, text)
		}
	}

	for path, item := range d.Paths {
		for status := range item.Get.Responses {
			require.True(t, covered[path+" "+status], "no test sees %s %s", path, status)
		}
	}
}

// Without this a schema that allows too much would pass the test above.
func TestSchemasAreClosed(t *testing.T) {
	t.Parallel()
	var walk func(at string, v any)
	walk = func(at string, v any) {
		switch v := v.(type) {
		case map[string]any:
			properties, ok := v["properties"].(map[string]any)
			if ok && v["type"] == "object" {
				require.Equal(t, false, v["additionalProperties"], "%s is open", at)
			}

			for name := range properties {
				require.IsType(t, map[string]any{}, properties[name], "%s/%s", at, name)
			}

			for name, child := range v {
				walk(at+"/"+name, child)
			}
		case []any:
			for _, child := range v {
				walk(at, child)
			}
		}
	}
	for name, s := range spec(t).Components.Schemas {
		walk("/"+name, s)
	}
}

// A strict parser refuses what a tolerant one reads as something else: an unquoted comma in a text
// makes half of it a key without a value.
func TestDocumentIsStrict(t *testing.T) {
	t.Parallel()
	var whole map[string]any
	require.NoError(t, yaml.Unmarshal(openAPI, &whole))
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, value := range v {
				require.NotContains(t, key, " ", path)
				require.NotNil(t, value, "%s/%s", path, key)
				if key == "description" && !strings.HasSuffix(path, "/properties") {
					require.IsType(t, "", value, path)
				}

				walk(path+"/"+key, value)
			}
		case []any:
			for _, value := range v {
				walk(path, value)
			}
		}
	}
	walk("", whole)
}

// What others generate clients from is read by a parser of theirs, which knows the specification.
func TestDocumentFitsTheSpecification(t *testing.T) {
	t.Parallel()
	d, err := openapi3.NewLoader().LoadFromData(openAPI)
	require.NoError(t, err)
	require.NoError(t, d.Validate(t.Context()))

	broken := map[string][2]string{
		"an unquoted colon":   {`description: "Of a conflict: the id of the command that was first."`, `description: Of a conflict: the id`},
		"a wrong reference":   {`$ref: "#/components/schemas/Readiness"`, `$ref: "#/components/schemas/Rediness"`},
		"a type of its own":   {`status: {type: integer}`, `status: {type: duration}`},
		"a missing parameter": {"      name: id\n", "      name: ident\n"},
	}
	for name, b := range broken {
		require.Contains(t, string(openAPI), b[0], name)
		d, err := openapi3.NewLoader().LoadFromData(bytes.Replace(openAPI, []byte(b[0]), []byte(b[1]), 1))
		if err == nil {
			err = d.Validate(t.Context())
		}

		require.Error(t, err, "%s is not found", name)
	}
}
