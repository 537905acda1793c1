package message_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/message"
)

// go test ./relayer/message -update writes the golden files anew. A change in them is a change for every consumer.
var update = flag.Bool("update", false, "rewrite the golden files")

const (
	chainID = 11155111
	factory = "0x1F98431c8aD98523631AE4a59f267346ea31F984"
	escrow  = "0xE3d2980084b291fBA9684208EbDB5A4cb03bBD29"
	payer   = "0xD0275E28F9e9C3D261dB60E8e1204aA2f16f1ca2"
	payee   = "0x311E63dfcEfe7f2c202715ef0DF01CDA82f58914"
	most    = "115792089237316195423570985008687907853269984665640564039457584007913129639935"
)

var published = time.Date(2026, 11, 21, 5, 30, 9, 123456789, time.FixedZone("CET", 3600))

func event(name, args string) *message.Event {
	e := &message.Event{
		Name: name, ContractAddress: escrow, Factory: factory, BlockNumber: 7_654_321, BlockTime: 1_795_238_400, LogIndex: 12,
		Args:      []byte(args),
		BlockHash: [32]byte{0xb1, 31: 0x0c}, TransactionHash: [32]byte{0x7a, 31: 0xff},
		Escrow: escrow,
	}
	if name == "EscrowDeployed" {
		e.ContractAddress = factory
	}

	return e
}

type example struct {
	name  string
	kind  message.Kind
	event *message.Event
}

// examples are a message of each kind and event.
func examples() []example {
	deployed := event("EscrowDeployed",
		`{"escrow":"`+escrow+`","payer":"`+payer+`","payee":"`+payee+`","arbiter":"`+payer+`","amount":"1000000000000000000","releaseDelay":"86400","approvalsRequired":"2"}`)
	approved := event("Approved", `{"approver":"`+payer+`"}`)
	older := event("EscrowDeployed",
		`{"escrow":"`+escrow+`","payer":"`+payer+`","payee":"`+payee+`","amount":"1000000000000000000","releaseDelay":"86400","approvalsRequired":"2"}`)
	older.Factory = "" // of a version that followed one factory

	return []example{
		{"EscrowDeployed", message.Original, deployed},
		{"EscrowDeployed_without_arbiter", message.Original, older},
		{"EscrowCreated", message.Original, event("EscrowCreated",
			`{"payer":"`+payer+`","payee":"`+payee+`","arbiter":"`+payer+`","amount":"1","releaseTime":"1795324800","approvalsRequired":"0"}`)},
		{"Approved", message.Original, approved},
		{"ArbiterChanged", message.Original, event("ArbiterChanged",
			`{"oldArbiter":"`+payer+`","newArbiter":"0x0000000000000000000000000000000000000000"}`)},
		{"EscrowReleased", message.Original, event("EscrowReleased",
			`{"payee":"`+payee+`","amount":"1000000000000000000","timestamp":"1795238400"}`)},
		{"EscrowRefunded", message.Original, event("EscrowRefunded",
			`{"payer":"`+payer+`","amount":"0","timestamp":"1795238400"}`)},
		{"every_type", message.Original, event("Noted",
			`{"text":"say \"hi\", {you}: [\\]","block_hash":"0x00","ok":true,"list":["1","2"],"leg":{"to":"`+payer+`","memos":[["a"],[]]},"args":"mine","reason":"late"}`)},
		{"aliased", message.Original, event("EscrowDeployed", `{"id":"7","deal":"`+escrow+`","price":"1"}`)},
		{"aliased_end", message.Original, event("EscrowReleased", `{"id":"7","escrow":"mine","truncated":false}`)},
		{"odd", message.Original, event("Noted",
			`{"text":"\u0000\ufffd\"\\\n","__proto__":"x","constructor":["y"],"toString":{}}`)},
		{"truncated", message.Original, event("Noted", `{"text":"`+strings.Repeat(`\u0001`, message.MaxArgs/6+1)+`"}`)},
		{"retraction", message.Retraction, approved},
		{"replay", message.Replay, deployed},
	}
}

func encode(t testing.TB, k message.Kind, e *message.Event) ([]byte, map[string]string) {
	body, attributes, err := message.Encode(k, e, chainID, published)
	require.NoError(t, err)
	return body, attributes
}

func TestGolden(t *testing.T) {
	schema := compile(t)
	for _, x := range examples() {
		t.Run(x.name, func(t *testing.T) {
			body, attributes := encode(t, x.kind, x.event)
			var indented bytes.Buffer
			require.NoError(t, json.Indent(&indented, body, "", "  "))
			golden(t, x.name+".json", append(body, '\n'))
			marshalled, err := json.MarshalIndent(attributes, "", "  ")
			require.NoError(t, err)
			golden(t, x.name+".attributes.json", append(marshalled, '\n'))

			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
			require.NoError(t, err)
			require.NoError(t, schema.Validate(value))

			m, err := message.Decode(body, attributes)
			require.NoError(t, err)
			require.Equal(t, x.kind == message.Replay, m.Replay)
			require.Equal(t, x.kind == message.Retraction, m.Retracted)
			require.Equal(t, x.name == "truncated", m.Truncated)
		})
	}
}

// The message that the README shows is one.
func TestReadmeShowsAMessage(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	body := regexp.MustCompile(`(?s)\n## A message\n\n( {4}\{.*?\n {4}\}\n)`).FindSubmatch(text)
	require.NotNil(t, body)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body[1]))
	require.NoError(t, err)
	require.NoError(t, compile(t).Validate(value))
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}

	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "if every consumer can live with it: go test ./relayer/message -update")
}

func compile(t testing.TB) *jsonschema.Schema {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(message.Schema))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource("schema.json", document))
	schema, err := c.Compile("schema.json")
	require.NoError(t, err)

	return schema
}

func TestSchemaRefuses(t *testing.T) {
	schema := compile(t)
	body, _ := encode(t, message.Retraction, event("Approved", `{"approver":"`+payer+`"}`))
	for name, change := range map[string]func(map[string]any){
		"no event_type":               func(m map[string]any) { delete(m, "event_type") },
		"a string block_number":       func(m map[string]any) { m["block_number"] = "1" },
		"a null argument":             func(m map[string]any) { m["args"].(map[string]any)["arbiter"] = nil },
		"a number argument":           func(m map[string]any) { m["args"].(map[string]any)["amount"] = 0 },
		"a number at the top":         func(m map[string]any) { m["amount"] = 0 },
		"a number in an array":        func(m map[string]any) { m["amounts"] = []any{0} },
		"a local time":                func(m map[string]any) { m["timestamp"] = "2026-11-21T05:30:09+01:00" },
		"retracted without its block": func(m map[string]any) { delete(m, "original_block_hash") },
		"a block without retracted":   func(m map[string]any) { delete(m, "retracted") },
	} {
		var m map[string]any
		require.NoError(t, json.Unmarshal(body, &m))
		require.NoError(t, schema.Validate(m))
		change(m)
		require.Error(t, schema.Validate(m), name)
	}
}

// One of the consumers reads into a column of 2,000 characters.
func TestBodyIsShort(t *testing.T) {
	for _, x := range examples()[:7] {
		e := *x.event
		e.BlockNumber, e.BlockTime, e.LogIndex = 1<<63-1, 253402300799, 1<<31-1
		args := string(e.Args)
		for _, number := range []string{`"1000000000000000000"`, `"86400"`, `"1795238400"`, `"1795324800"`, `"1"`, `"0"`} {
			args = strings.ReplaceAll(args, number, `"`+most+`"`)
		}

		e.Args = []byte(args)
		body, _, err := message.Encode(message.Retraction, &e, 1<<53, published)
		require.NoError(t, err)
		require.Less(t, len(body), 2000, x.name)
	}
}

func TestDecode(t *testing.T) {
	body, attributes := encode(t, message.Retraction,
		event("EscrowReleased", `{"payee":"`+payee+`","amount":"`+most+`","timestamp":"-1"}`))
	m, err := message.Decode(body, attributes)
	require.NoError(t, err)
	require.Equal(t, &message.Message{
		EventID:   "0x7a000000000000000000000000000000000000000000000000000000000000ff:12",
		EventType: "EscrowReleased", ChainID: "11155111", Escrow: strings.ToLower(escrow), ContractAddress: escrow,
		Factory:         factory,
		BlockNumber:     7_654_321,
		BlockHash:       "0xb10000000000000000000000000000000000000000000000000000000000000c",
		BlockTimestamp:  time.Unix(1_795_238_400, 0).UTC(),
		TransactionHash: "0x7a000000000000000000000000000000000000000000000000000000000000ff", LogIndex: 12,
		Timestamp: published.UTC().Truncate(time.Millisecond),
		Args:      map[string]any{"payee": payee, "amount": most, "timestamp": "-1"},
		Retracted: true, Reason: message.Reorganised,
		OriginalBlockHash: "0xb10000000000000000000000000000000000000000000000000000000000000c",
	}, m)
}

func TestArguments(t *testing.T) {
	m, err := message.Decode(encode(t, message.Original,
		event("EscrowReleased", `{"payee":"`+payee+`","amount":"`+most+`","timestamp":"-1","final":true,"padded":"01"}`)))
	require.NoError(t, err)
	n, err := m.Int("amount")
	require.NoError(t, err)
	require.Equal(t, most, n.String())
	n, err = m.Int("timestamp")
	require.NoError(t, err)
	require.EqualValues(t, -1, n.Int64())
	text, err := m.Text("payee")
	require.NoError(t, err)
	require.Equal(t, payee, text)

	of := " of EscrowReleased " + m.EventID
	m.Truncated = true
	_, err = m.Text("nothing")
	require.EqualError(t, err, `argument nothing`+of+` is left out: the message is truncated`)
	m.Truncated = false
	_, err = m.Int("payee")
	require.EqualError(t, err, `argument payee`+of+` is no integer: "`+payee+`"`)
	_, err = m.Int("padded")
	require.EqualError(t, err, `argument padded`+of+` is no integer: "01"`)
	_, err = m.Int("nothing")
	require.EqualError(t, err, `argument nothing`+of+` is missing`)
	_, err = m.Text("nothing")
	require.EqualError(t, err, `argument nothing`+of+` is missing`)
	_, err = m.Text("final")
	require.EqualError(t, err, `argument final`+of+` is no string: true`)
}

func TestDecodeRefuses(t *testing.T) {
	type refusal struct {
		Name       string            `json:"name"`
		Data       string            `json:"data"`
		Attributes map[string]string `json:"attributes"`
		Schema     bool              `json:"schema"` // the schema is unknown; otherwise the message is malformed
	}
	var refusals []refusal
	body, attributes := encode(t, message.Original, event("EscrowDeployed", `{"escrow":"`+escrow+`","amount":"1"}`))
	for _, c := range []struct {
		name, old, new, attribute, value, want string
		times                                  int // 0: all
	}{
		{name: "no JSON", old: "{", new: "", want: "not a JSON object"},
		{name: "another transaction", old: `"transaction_hash":"0x7a`, new: `"transaction_hash":"0x7b`,
			want: "transaction_hash and log_index give"},
		{name: "another index", old: `"log_index":12`, new: `"log_index":13`, want: "transaction_hash and log_index give"},
		{name: "event_id of another form", old: `ff:12","event_type`, new: `ff:012","event_type`, want: "event_id is"},
		{name: "names that differ", old: `"event_name":"E`, new: `"event_name":"F`, want: "event_name is"},
		{name: "a string block_number", old: `"block_number":7654321`, new: `"block_number":"7654321"`,
			want: "read block_number"},
		{name: "no block_number", old: `"block_number":7654321,`, new: ``, want: "block_number is missing"},
		{name: "a null", old: `"block_number":7654321`, new: `"block_number":null`, want: "block_number is missing"},
		{name: "a hash cut short", old: `0000000c"`, new: `000000c"`, want: "block_hash is"},
		{name: "a time without a zone", old: `Z","transaction_hash`, new: `","transaction_hash`,
			want: "read block_timestamp"},
		{name: "copies that differ", old: `"1"}`, new: `"2"}`, times: 1, want: "argument amount"},
		{name: "no copy", old: `},"amount":"1"`, new: `}`, want: "argument"},
		{name: "no escrow", old: `"escrow":"` + escrow + `","factory"`, new: `"factory"`, want: "escrow is missing"},
		{name: "an escrow that is no address", old: `"escrow":"` + escrow + `","factory"`, new: `"escrow":"0x12","factory"`,
			want: "escrow is"},
		{name: "another emitter than the escrow", old: `"EscrowDeployed"`, new: `"Approved"`, want: "contract_address"},
		{name: "truncated, or not", old: `"args"`, new: `"truncated":"yes","args"`, want: "read truncated"},
		{name: "a number", old: `"1"`, new: `1`, want: "neither string nor boolean"},
		{name: "a null argument", old: `"1"`, new: `null`, want: "neither string nor boolean"},
		{name: "a null in an array", old: `"1"`, new: `[["a",null]]`, want: "neither string nor boolean"},
		{name: "a fraction", old: `"block_number":7654321`, new: `"block_number":7654321.5`, want: "read block_number"},
		{name: "a negative number", old: `"log_index":12`, new: `"log_index":-12`, want: "read log_index"},
		{name: "a number of 65 bits", old: `"block_number":7654321`, new: `"block_number":18446744073709551616`,
			want: "read block_number"},
		{name: "a boolean for a number", old: `"log_index":12`, new: `"log_index":true`, want: "read log_index"},
		{name: "an array", old: `{"event_id`, new: `[{"event_id`, want: "not a JSON object"},
		{name: "args as an array", old: `"args":{`, new: `"args":[],"argz":{`, want: "read args"},
		{name: "no such day", old: `"block_timestamp":"2026`, new: `"block_timestamp":"2026-02-30T00:00:00Z","was":"2026`,
			want: "read block_timestamp"},
		{name: "another schema", attribute: "schema", value: "2", want: "update it"},
		{name: "no schema", attribute: "schema", want: "attribute schema is missing"},
		{name: "another event_id", attribute: "event_id", value: "x", want: "attribute event_id"},
		{name: "another event_type", attribute: "event_type", value: "Approved", want: "attribute event_type"},
		{name: "another event_name", attribute: "event_name", value: "", want: "attribute event_name"},
		{name: "another chain", attribute: "chain_id", value: "1", want: "attribute chain_id"},
		{name: "another block", attribute: "block_number", value: "1", want: "attribute block_number"},
		{name: "the factory for the escrow", attribute: "escrow", value: strings.ToLower(factory), want: "attribute escrow"},
		{name: "another factory", attribute: "factory", value: strings.ToLower(escrow), want: "attribute factory"},
		{name: "no factory in the body", old: `"factory":"` + factory + `",`, new: "", want: "factory is missing"},
		{name: "a factory that is no address", old: `"factory":"` + factory + `"`, new: `"factory":"0x12"`, want: "factory is"},
		{name: "mixed case", attribute: "escrow", value: escrow, want: "attribute escrow"},
		{name: "retracted among the attributes only", attribute: "retracted", value: "true", want: "attribute retracted"},
		{name: "retracted in the body only", old: `"args"`, new: `"retracted":true,"reason":"r","original_block_hash":"0x` +
			strings.Repeat("0", 64) + `","args"`, want: "attribute retracted"},
		{name: "retracted without a reason", old: `"args"`, new: `"retracted":true,"args"`, want: "reason is missing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			changed, with := string(body), map[string]string{}
			maps.Copy(with, attributes)

			if c.times == 0 {
				c.times = -1
			}

			if c.old != "" {
				require.Contains(t, changed, c.old)
				changed = strings.Replace(changed, c.old, c.new, c.times)
			}

			if c.attribute != "" {
				with[c.attribute] = c.value
			}

			another := c.attribute == "schema" && c.value != ""
			refusals = append(refusals, refusal{c.name, changed, with, another})
			_, err := message.Decode([]byte(changed), with)
			require.ErrorContains(t, err, c.want)
			if another {
				require.ErrorIs(t, err, message.ErrSchema)
			} else {
				require.ErrorIs(t, err, message.ErrMalformed)
			}
		})
	}

	_, err := message.Decode(nil, nil)
	require.ErrorIs(t, err, message.ErrMalformed)

	// The decoders in other languages refuse the same.
	shared, err := json.MarshalIndent(refusals, "", "")
	require.NoError(t, err)
	golden(t, "refused.json", append(shared, '\n'))
}

// Names are exact: encoding/json alone would take TIMESTAMP for timestamp.
func TestNamesThatDifferInCase(t *testing.T) {
	m, err := message.Decode(encode(t, message.Original,
		event("Noted", `{"TIMESTAMP":"x","Args":"y","Block_Number":"z"}`)))
	require.NoError(t, err)
	require.EqualValues(t, 7_654_321, m.BlockNumber)
	require.Equal(t, "x", m.Args["TIMESTAMP"])
	require.Equal(t, "y", m.Args["Args"])
}

func TestEncodeRefuses(t *testing.T) {
	for _, args := range []string{``, `null`, `[]`, `{`, `{"a"}`, `{"a":}`, `{"a":"b"`, `{"a":"b",}`, `{"a":"b"}}`,
		`{"a":"b"} x`, `{"a":"b" "c":"d"}`, `{"":"b"}`, `{"\u0061":"b"}`, `{"a":"b`, `{"a":"b\"}`, `{1:"b"}`} {
		_, _, err := message.Encode(message.Original, event("Noted", args), chainID, published)
		require.ErrorContains(t, err, "encode Noted 0x7a", args)
	}

	for _, args := range []string{`{}`, ` { "a" : [ { "b" : "}" } , "]" ] , "c" : true } `} {
		body, _ := encode(t, message.Original, event("Noted", args))
		require.True(t, json.Valid(body), "%s", body)
	}
}

// FuzzEncode compares with encoding/json: valid arguments make a valid body that says the same.
func FuzzEncode(f *testing.F) {
	for _, x := range examples() {
		if x.name != "truncated" {
			f.Add(string(x.event.Args))
		}
	}

	f.Add(` { "a" : [ "}" , { "b\\" : "\"" } ] , "timestamp" : true } `)
	f.Fuzz(func(t *testing.T, args string) {
		body, attributes, err := message.Encode(message.Original, event("Noted", args), chainID, published)
		var want map[string]json.RawMessage
		if json.Unmarshal([]byte(args), &want) != nil || want == nil {
			return // the ABI never makes such arguments; any outcome but a panic will do
		}

		if err != nil {
			// names with escapes, and empty ones
			require.True(t, strings.Contains(args, `\`) || strings.Contains(args, `""`), "%s: %v", args, err)
			return
		}

		var got map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(body, &got), "%s", body)
		require.JSONEq(t, args, string(got["args"]))
		for name, value := range want {
			if _, reserved := attributes[name]; reserved && name != "schema" ||
				string(got[name]) == string(got["args"]) {
				continue
			}

			switch name {
			case "contract_address", "block_hash", "block_timestamp", "transaction_hash", "log_index", "timestamp", "truncated",
				"retracted", "reason", "original_block_hash":
				continue
			}

			require.JSONEq(t, string(value), string(got[name]), name)
		}

		if m, err := message.Decode(body, attributes); err == nil {
			require.Len(t, m.Args, len(want))
		}
	})
}

func FuzzDecode(f *testing.F) {
	for _, x := range examples() {
		body, _ := encode(f, x.kind, x.event)
		f.Add(body)
	}

	f.Fuzz(func(t *testing.T, body []byte) {
		attributes := map[string]string{message.AttrSchema: message.Version}
		var top map[string]any
		if json.Unmarshal(body, &top) == nil { // attributes that agree
			for _, name := range []string{message.AttrEventID, message.AttrEventType, message.AttrEventName,
				message.AttrChainID} {
				attributes[name], _ = top[name].(string)
			}

			if n, ok := top["block_number"].(float64); ok {
				attributes[message.AttrBlockNumber] = fmt.Sprintf("%.0f", n)
			}

			if top["retracted"] == true {
				attributes[message.AttrRetracted] = "true"
			}

			s, _ := top["escrow"].(string)
			attributes[message.AttrEscrow] = strings.ToLower(s)
		}

		m, err := message.Decode(body, attributes)
		if err != nil {
			require.ErrorIs(t, err, message.ErrMalformed)
			return
		}

		require.Equal(t, m.EventID, fmt.Sprintf("%s:%d", m.TransactionHash, m.LogIndex))
	})
}

func BenchmarkEncode(b *testing.B) {
	for _, x := range examples() {
		if x.name != "EscrowDeployed" && x.name != "Approved" && x.name != "every_type" {
			continue
		}

		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _, _ = message.Encode(x.kind, x.event, chainID, published)
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	body, attributes := encode(b, message.Original, examples()[0].event)
	b.ReportAllocs()
	for b.Loop() {
		_, _ = message.Decode(body, attributes)
	}
}
