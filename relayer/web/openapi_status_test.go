package web

import (
	"encoding/json"
	"flag"
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/fleet"
)

var rewrite = flag.Bool("update", false, "write the generated part of openapi.yaml instead of comparing it")

// The answer of /status is described by its types and their comments; the rest of the document is written by hand.
func TestStatusIsDescribedByItsTypes(t *testing.T) {
	t.Parallel()
	const file, from = "assets/openapi.yaml", "    # From here on written by: go test ./relayer/web -run TestStatusIsDescribedByItsTypes -update\n"
	g := generator{map[string]string{}, map[string][]string{}, map[string]*object{}}
	for _, dir := range []string{".", "../fleet", "../../partition"} {
		g.read(t, dir)
	}

	require.Equal(t, "web.status", reflect.TypeFor[status]().String())
	g.schema(reflect.TypeFor[status]())
	generated := ""
	for _, name := range slices.Sorted(maps.Keys(g.schemas)) {
		s := g.schemas[name]
		generated += "    " + name + ":\n      type: object\n      additionalProperties: false\n      required: " +
			asJSON(t, s.required) + "\n      properties:\n"
		for _, field := range slices.Sorted(maps.Keys(s.properties)) {
			generated += "        " + field + ": " + asJSON(t, s.properties[field]) + "\n"
		}
	}

	text, err := os.ReadFile(file)
	require.NoError(t, err)
	written, was, ok := strings.Cut(string(text), from)
	require.True(t, ok)
	if *rewrite {
		require.NoError(t, os.WriteFile(file, []byte(written+from+generated), 0o644))
		return
	}

	require.Equal(t, generated, was, "write it anew with -update")
}

// generator describes types.
type generator struct {
	comments map[string]string   // by package.type.field
	values   map[string][]string // the constants of a type, by package.type
	schemas  map[string]*object  // of structs, by package.type
}

type object struct {
	required   []string
	properties map[string]any
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)

	return string(text)
}

// read collects the comments and constants of a package.
func (g *generator) read(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(dir + "/*.go")
	require.NoError(t, err)
	for _, name := range files {
		f, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.ParseComments)
		require.NoError(t, err)
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if s, ok := n.Type.(*ast.StructType); ok {
					g.fields(f.Name.Name+"."+n.Name.Name, s)
				}
			case *ast.ValueSpec:
				value, ok := append(n.Values, nil)[0].(*ast.BasicLit)
				if of, named := n.Type.(*ast.Ident); named && ok && value.Kind == gotoken.STRING {
					text, _ := strconv.Unquote(value.Value)
					g.values[f.Name.Name+"."+of.Name] = append(g.values[f.Name.Name+"."+of.Name], text)
				}
			}

			return true
		})
	}
}

func (g *generator) fields(of string, s *ast.StructType) {
	for _, field := range s.Fields.List {
		said := strings.Join(strings.Fields(field.Doc.Text()+" "+field.Comment.Text()), " ")
		for _, name := range field.Names {
			g.comments[of+"."+name.Name] = said
		}
	}
}

// schema describes a type; structs by reference.
func (g *generator) schema(t reflect.Type) map[string]any {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[fleet.Age](), t.Kind() == reflect.Float64:
		return map[string]any{"type": "number"}
	case t.Kind() == reflect.Pointer:
		return map[string]any{"oneOf": []any{g.schema(t.Elem()), map[string]any{"type": "null"}}}
	case t.Kind() == reflect.Slice:
		return map[string]any{"type": "array", "items": g.schema(t.Elem())}
	case t.Kind() == reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": g.schema(t.Elem())}
	case t.Kind() == reflect.Bool:
		return map[string]any{"type": "boolean"}
	case t.Kind() == reflect.String && g.values[t.String()] != nil:
		return map[string]any{"type": "string", "enum": g.values[t.String()]}
	case t.Kind() == reflect.String:
		return map[string]any{"type": "string"}
	case t.Kind() == reflect.Struct:
		if g.schemas[t.String()] == nil {
			g.schemas[t.String()] = &object{[]string{}, map[string]any{}}
			g.properties(t, g.schemas[t.String()])
		}

		return map[string]any{"$ref": "#/components/schemas/" + t.String()}
	}

	return map[string]any{"type": "integer"}
}

// properties adds the fields of a struct, without those that an outer one has already.
func (g *generator) properties(t reflect.Type, into *object) {
	var embedded []reflect.Type
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && f.Type.Kind() == reflect.Pointer:
			embedded = append(embedded, f.Type.Elem())
			continue
		case f.Anonymous:
			embedded = append(embedded, f.Type)
			continue
		case name == "" || name == "-" || into.properties[name] != nil:
			continue
		}

		left := strings.Contains(options, "omit")
		of := f.Type
		if left && of.Kind() == reflect.Pointer {
			of = of.Elem()
		}

		schema := g.schema(of)
		if options == "string" {
			schema = map[string]any{"type": "string"}
		}

		if said := g.comments[t.String()+"."+f.Name]; said != "" {
			schema["description"] = said
		}

		into.properties[name] = schema
		if !left {
			into.required = append(into.required, name)
		}
	}

	for _, of := range embedded {
		g.properties(of, into)
	}

	slices.Sort(into.required)
}
