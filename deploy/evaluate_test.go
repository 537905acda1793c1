package deploy

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

// What Terraform makes of the module in deploy/terraform: which resources it wants, with which arguments. The provider
// cannot be had everywhere; what it computes is written down here.

// attributes of a resource by name; blocks are lists. What only an apply tells is unknown.
type attributes = map[string]any

const unknown = "(known after apply)"

// evaluation is one reading of the module with the values of terraform.tfvars.
type evaluation struct {
	blocks map[string]*hclsyntax.Block
	locals map[string]hclsyntax.Expression
	vars   map[string]cty.Value
	known  map[string]cty.Value // what was evaluated, by "local.x" or "google_x.y"
}

// left are files without influence on the pages' steps: alerts and dashboards.
var left = []string{"alerts.tf", "dashboard.tf", "monitoring.tf"}

func evaluate(dir string) (*evaluation, error) {
	e := &evaluation{map[string]*hclsyntax.Block{}, map[string]hclsyntax.Expression{}, map[string]cty.Value{},
		map[string]cty.Value{}}
	files, err := filepath.Glob(filepath.Join(dir, "*.tf"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("terraform: no configuration files in %s", dir)
	}

	for _, name := range append(files, filepath.Join(dir, "terraform.tfvars")) {
		text, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}

		f, diags := hclsyntax.ParseConfig(text, name, hcl.InitialPos)
		if diags.HasErrors() {
			return nil, diags
		}

		body := f.Body.(*hclsyntax.Body)
		for k, a := range body.Attributes {
			if e.vars[k], diags = a.Expr.Value(nil); diags.HasErrors() {
				return nil, diags
			}
		}

		if slices.Contains(left, filepath.Base(name)) {
			continue
		}

		for _, b := range body.Blocks {
			if b.Type == "locals" {
				for k, a := range b.Body.Attributes {
					e.locals[k] = a.Expr
				}
			} else {
				e.blocks[strings.Join(append([]string{b.Type}, b.Labels...), ".")] = b
			}
		}
	}

	return e, nil
}

var functions = map[string]function.Function{
	"compact": stdlib.CompactFunc, "concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc,
	"element": stdlib.ElementFunc,
	"format":  stdlib.FormatFunc, "join": stdlib.JoinFunc, "jsonencode": stdlib.JSONEncodeFunc,
	"keys":   stdlib.KeysFunc,
	"min":    stdlib.MinFunc,
	"length": stdlib.LengthFunc, "merge": stdlib.MergeFunc, "range": stdlib.RangeFunc, "replace": stdlib.ReplaceFunc,
	"setproduct": stdlib.SetProductFunc, "split": stdlib.SplitFunc, "trimsuffix": stdlib.TrimSuffixFunc,
	"upper":    stdlib.UpperFunc,
	"tonumber": stdlib.MakeToFunc(cty.Number), "toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
	"tostring": stdlib.MakeToFunc(cty.String),
	"one": function.New(&function.Spec{
		Params: []function.Parameter{{Name: "list", Type: cty.DynamicPseudoType}},
		Type:   function.StaticReturnType(cty.DynamicPseudoType),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			if args[0].LengthInt() == 0 {
				return cty.NullVal(cty.String), nil
			}

			return args[0].Index(cty.NumberIntVal(0)), nil
		},
	}),
	"urlencode": text(url.QueryEscape),
	"file":      text(func(name string) string { return "content of " + filepath.Base(name) }),
}

func text(f func(string) string) function.Function {
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "text", Type: cty.String}},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.StringVal(f(args[0].AsString())), nil
		},
	})
}

// value evaluates an expression; extra are the names of the place where it stands (each, an iterator).
func (e *evaluation) value(x hcl.Expression, extra map[string]cty.Value) (cty.Value, error) {
	vars := map[string]cty.Value{"path": cty.ObjectVal(map[string]cty.Value{"module": cty.StringVal(".")})}
	objects := map[string]map[string]cty.Value{}
	for _, t := range x.Variables() {
		root := t.RootName()
		if _, ok := extra[root]; ok || root == "path" {
			continue
		}

		second := t[1].(hcl.TraverseAttr).Name
		v, err := e.refer(root, second, t)
		if err != nil {
			return cty.NilVal, err
		}

		if objects[root] == nil {
			objects[root] = map[string]cty.Value{}
		}

		objects[root][second] = v
	}

	for root, of := range objects {
		vars[root] = cty.ObjectVal(of)
	}

	maps.Copy(vars, extra)
	v, diags := x.Value(&hcl.EvalContext{Variables: vars, Functions: functions})
	if diags.HasErrors() {
		return cty.NilVal, diags
	}

	return v, nil
}

// refer is what var.x, local.x, data.x.y or google_x.y stands for.
func (e *evaluation) refer(root, second string, t hcl.Traversal) (v cty.Value, err error) {
	key := root + "." + second
	if v, ok := e.known[key]; ok {
		return v, nil
	}

	switch b := e.blocks["resource."+key]; {
	case root == "var":
		if v, ok := e.vars[second]; ok {
			return v, nil
		}

		declared := e.blocks["variable."+second]
		if declared == nil || declared.Body.Attributes["default"] == nil {
			return cty.NilVal, fmt.Errorf("no value for variable %q", second)
		}

		v, err = e.value(declared.Body.Attributes["default"].Expr, nil)
	case root == "local" && e.locals[second] != nil:
		v, err = e.value(e.locals[second], nil)
	case root == "data":
		number := cty.ObjectVal(map[string]cty.Value{"number": cty.StringVal("123456789012")})
		v = cty.ObjectVal(map[string]cty.Value{"this": number})
	case b != nil:
		v, err = e.references(b)
	default:
		return cty.NilVal, fmt.Errorf("%s: reference to undeclared %s", t.SourceRange(), key)
	}

	e.known[key] = v

	return v, err
}

// instance is one resource: its address, what repeats it, its arguments.
type instance struct {
	address string
	kind    string
	key     cty.Value // of for_each or count; NilVal without
	has     attributes
}

// expand evaluates a resource block to its instances.
func (e *evaluation) expand(b *hclsyntax.Block) (all []instance, err error) {
	name := b.Labels[0] + "." + b.Labels[1]
	one := func(address string, key cty.Value, extra map[string]cty.Value) error {
		has, err := e.body(b.Body, extra)
		all = append(all, instance{address, b.Labels[0], key, has})

		return err
	}
	if a := b.Body.Attributes["count"]; a != nil {
		n, err := e.value(a.Expr, nil)
		if err != nil {
			return nil, err
		}

		count, _ := n.AsBigFloat().Int64()
		for i := range count {
			key := cty.NumberIntVal(i)
			extra := map[string]cty.Value{"count": cty.ObjectVal(map[string]cty.Value{"index": key})}
			if err := one(fmt.Sprintf("%s[%d]", name, i), key, extra); err != nil {
				return nil, err
			}
		}

		return all, nil
	}

	a := b.Body.Attributes["for_each"]
	if a == nil {
		return all, one(name, cty.NilVal, nil)
	}

	of, err := e.value(a.Expr, nil)
	if err != nil {
		return nil, err
	}

	for it := of.ElementIterator(); it.Next(); {
		k, v := it.Element()
		if of.Type().IsSetType() {
			k = v
		}

		extra := map[string]cty.Value{"each": cty.ObjectVal(map[string]cty.Value{"key": k, "value": v})}
		if err := one(fmt.Sprintf("%s[%q]", name, k.AsString()), k, extra); err != nil {
			return nil, err
		}
	}

	return all, nil
}

// references is a resource as others refer to it, with what the provider computes.
func (e *evaluation) references(b *hclsyntax.Block) (cty.Value, error) {
	all, err := e.expand(b)
	if err != nil {
		return cty.NilVal, err
	}

	project, err := e.refer("var", "project", nil)
	if err != nil {
		return cty.NilVal, err
	}

	region, err := e.refer("var", "region", nil)
	if err != nil {
		return cty.NilVal, err
	}

	list, object := []cty.Value{}, map[string]cty.Value{}
	for _, i := range all {
		of := map[string]cty.Value{"id": cty.StringVal(i.address), "version": cty.StringVal("1")}
		for k, v := range i.has {
			if s, ok := v.(string); ok {
				of[k] = cty.StringVal(s)
			}
		}

		switch i.kind {
		case "google_service_account":
			of["email"] = cty.StringVal(fmt.Sprintf("%s@%s.iam.gserviceaccount.com", i.has["account_id"], project.AsString()))
			of["name"] = cty.StringVal("projects/-/serviceAccounts/" + of["email"].AsString())
		case "google_sql_database_instance":
			of["connection_name"] = cty.StringVal(fmt.Sprintf("%s:%s:%s", project.AsString(), region.AsString(), i.has["name"]))
		}

		list = append(list, cty.ObjectVal(of))
		if i.key != cty.NilVal && i.key.Type() == cty.String {
			object[i.key.AsString()] = cty.ObjectVal(of)
		}
	}

	switch {
	case b.Body.Attributes["for_each"] != nil:
		return cty.ObjectVal(object), nil
	case b.Body.Attributes["count"] != nil:
		return cty.TupleVal(list), nil
	}

	return list[0], nil
}

// body evaluates the arguments and blocks of a block. Null is as if it were not there.
func (e *evaluation) body(b *hclsyntax.Body, extra map[string]cty.Value) (attributes, error) {
	has := attributes{}
	for name, a := range b.Attributes {
		if slices.Contains(metaArguments, name) {
			continue
		}

		v, err := e.value(a.Expr, extra)
		if err != nil {
			return nil, err
		}

		switch {
		case !v.IsWhollyKnown():
			has[name] = unknown
		case !v.IsNull():
			j, err := ctyjson.SimpleJSONValue{Value: v}.MarshalJSON()
			if err != nil {
				return nil, err
			}

			var plain any
			if err := json.Unmarshal(j, &plain); err != nil {
				return nil, err
			}

			has[name] = plain
		}
	}

	add := func(name string, body *hclsyntax.Body, extra map[string]cty.Value) error {
		inner, err := e.body(body, extra)
		list, _ := has[name].([]any)
		has[name] = append(list, inner)

		return err
	}
	for _, nested := range b.Blocks {
		switch nested.Type {
		case "lifecycle":
		case "dynamic":
			of, err := e.value(nested.Body.Attributes["for_each"].Expr, extra)
			if err != nil {
				return nil, err
			}

			for it := of.ElementIterator(); it.Next(); {
				k, v := it.Element()
				inner := map[string]cty.Value{nested.Labels[0]: cty.ObjectVal(map[string]cty.Value{"key": k, "value": v})}
				maps.Copy(inner, extra)
				if err := add(nested.Labels[0], nested.Body.Blocks[0].Body, inner); err != nil {
					return nil, err
				}
			}
		default:
			if err := add(nested.Type, nested.Body, extra); err != nil {
				return nil, err
			}
		}
	}

	return has, nil
}

// wanted are all resources of the module by address.
func (e *evaluation) wanted() (map[string]instance, error) {
	all := map[string]instance{}
	for name, b := range e.blocks {
		if !strings.HasPrefix(name, "resource.") {
			continue
		}

		instances, err := e.expand(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}

		for _, i := range instances {
			all[i.address] = i
		}
	}

	return all, nil
}
