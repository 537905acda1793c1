package rpc

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"
)

const someLogs = `[{"address":"0xb5a5F22694352C15B00323844aD545ABb2B11028",` +
	`"topics":["0x99b5620489b6ef926d4518936cfec15d305452712b88bd59da2d9c10fb0953e8"],` +
	`"data":"0x0000010203","blockNumber":"0x1a","transactionHash":"0x77","transactionIndex":"0x0",` +
	`"blockHash":"0x88","logIndex":"0x3","removed":false}]`

func sample() []byte {
	long := func(digit string) string { return "0x" + strings.Repeat(digit, 64) }
	return []byte(strings.NewReplacer(`"0x77"`, `"`+long("7")+`"`, `"0x88"`, `"`+long("8")+`"`).Replace(someLogs))
}

// ParseLogs decodes the result of eth_getLogs, as it would be in an answer.
func ParseLogs(b []byte) ([]types.Log, error) {
	answer := slices.Concat([]byte(`{"id":1,"result":`), b, []byte("}"))
	c := &Call{Method: GetLogs}
	if err := newMessage(bytes.NewReader(answer), int64(len(answer))).deliver([]*Call{c}, 1); err != nil {
		return nil, err
	}

	if c.Null() {
		return nil, fmt.Errorf("%w: null", ErrInvalid)
	}

	return c.Logs, c.Err
}

func TestLogs(t *testing.T) {
	b := sample()
	var want []types.Log
	require.NoError(t, json.Unmarshal(b, &want))
	got, err := ParseLogs(b)
	require.NoError(t, err)
	require.Equal(t, want, got)

	empty, err := ParseLogs([]byte(" [ ] "))
	require.NoError(t, err)
	require.Empty(t, empty)

	// Members that a log need not have are passed over, and null is no time.
	got, err = ParseLogs(bytes.Replace(b, []byte(`"removed":false`),
		[]byte(`"removed":false,"blockTimestamp":null,"logType":"mined","l1BatchNumber":null,"extra":{"a":[1,"]"]}`), 1))
	require.NoError(t, err)
	require.Equal(t, want, got)
	got, err = ParseLogs(bytes.Replace(b, []byte(`"removed":false`),
		[]byte(`"removed":true,"blockTimestamp":"0x6553f100"`), 1))
	require.NoError(t, err)
	require.True(t, got[0].Removed)
	require.EqualValues(t, 1_700_000_000, got[0].BlockTimestamp)
	got, err = ParseLogs(bytes.Replace(b, []byte(`"removed"`), []byte(`"\u0072emoved"`), 1))
	require.NoError(t, err)
	require.Equal(t, want, got)

	for _, bad := range []string{
		"", "null", "{}", "[", "[{}]", "[null]x", string(b) + "]", `[{"address":1}]`, string(b[:len(b)-1]),
		strings.Replace(string(b), `"0x1a"`, `"0x1g"`, 1), strings.Replace(string(b), `"0x1a"`, `"26"`, 1),
		strings.Replace(string(b), "0x0000010203", "0x000", 1),
		strings.Replace(string(b), "logIndex", "LogIndex", 1), strings.Replace(string(b), `"blockNumber":"0x1a",`, "", 1),
	} {
		_, err := ParseLogs([]byte(bad))
		require.ErrorIs(t, err, ErrInvalid, bad)
	}
}

// Logs one behind the other that are as long as one may be, or longer, are no fault of the node's: the answer is
// whole, or too large, and never oversized.
func TestLongLogsInARow(t *testing.T) {
	const limit = 16 << 20
	for _, data := range []int{limit / shortValues / 2, limit/shortValues - 2, 5_700_000} {
		long := strings.Replace(string(sample()), "0x0000010203", "0x"+strings.Repeat("00", data/2), 1)
		answer := `{"id":1,"result":[` + strings.Join(slices.Repeat([]string{long[1 : len(long)-1]}, 2), ",") + `]}`
		c := &Call{Method: GetLogs}
		err := cmp.Or(newMessage(strings.NewReader(answer), limit).deliver([]*Call{c}, 1), c.Err)
		if data < limit/shortValues {
			require.NoError(t, err, data)
			require.Len(t, c.Logs, 2)
		} else {
			require.Equal(t, RangeTooLarge, Classify(err), "%d: %v", data, err)
		}
	}
}

// A log that cannot be decoded spoils its request's answer, and no other's of the batch.
func TestLogThatIsNone(t *testing.T) {
	good := string(sample())
	for _, bad := range []string{"{}", "1", `"x"`, "[]", "null", `{"address":"0x1","x":[{}]}`, `{"topics":[[1]]}`} {
		for _, format := range []string{
			`[{"id":1,"result":%s},{"id":2,"result":%s},{"id":3,"result":"0x1"}]`,
			`[{"result":%s,"id":1},{"result":%s,"id":2},{"result":"0x1","id":3}]`,
		} {
			calls := []*Call{{Method: GetLogs}, {Method: GetLogs}, {Method: ChainID}}
			answer := fmt.Sprintf(format, strings.Replace(good, "[{", "["+bad+",{", 1), good)
			require.NoError(t, newMessage(strings.NewReader(answer), 1<<20).deliver(calls, 1), answer)
			require.ErrorIs(t, calls[0].Err, ErrInvalid, answer)
			require.NoError(t, calls[1].Err, answer)
			require.Len(t, calls[1].Logs, 1)
			require.Equal(t, `"0x1"`, string(calls[2].Result))
		}
	}
}

// Of all logs of a block those that are not wanted are counted, and not kept.
func TestLogsThatAreNotWanted(t *testing.T) {
	var all []types.Log
	require.NoError(t, json.Unmarshal(sample(), &all))
	all = append(all, all[0])
	all[1].Address[0]++
	list, err := json.Marshal(all)
	require.NoError(t, err)
	for method, result := range map[string]string{
		GetLogs:     string(list),
		GetReceipts: fmt.Sprintf(`[{"blockHash":%q,"logs":null},{"logs":%s,"blockHash":%[1]q}]`, all[0].BlockHash, list),
	} {
		c := &Call{Method: method, Keep: func(l *types.Log) bool { return l.Address == all[1].Address }}
		answer := `{"id":1,"result":` + result + "}"
		require.NoError(t, newMessage(strings.NewReader(answer), 1<<20).deliver([]*Call{c}, 1))
		require.NoError(t, c.Err)
		require.Equal(t, all[1:], c.Logs)
		require.Equal(t, 2, c.All)
		require.InDelta(t, len(result), c.Bytes, 1)
		if method == GetReceipts {
			require.Equal(t, 2, c.Receipts)
			require.Equal(t, all[0].BlockHash, c.Block)
		}
	}

	mixed := &Call{Method: GetReceipts}
	answer := `{"id":1,"result":[{"blockHash":"0x` + strings.Repeat("1", 64) + `"},{"blockHash":"0x` +
		strings.Repeat("2", 64) + `"}]}`
	require.NoError(t, newMessage(strings.NewReader(answer), 1<<20).deliver([]*Call{mixed}, 1))
	require.ErrorContains(t, mixed.Err, "receipts of block")
}

// Whatever pieces an answer comes in, the same comes of it, and nothing panics. What encoding/json takes
// for logs, by names that are written as they should be, are the same logs.
func FuzzLogs(f *testing.F) {
	b := sample()
	f.Add(b)
	f.Add([]byte("[]"))
	f.Add([]byte(`[{"a":[{}]}`))
	f.Add(bytes.Replace(b, []byte("false"), []byte(`false,"x":"y"`), 1))
	f.Add(bytes.Replace(b, []byte("false"), []byte(`false,"blockTimestamp":"0x0"`), 1))
	f.Add(append(append(b[:len(b)-1:len(b)-1], ','), b[1:]...))
	f.Fuzz(func(t *testing.T, b []byte) {
		answer := slices.Concat([]byte(`{"id":1,"result":`), b, []byte("}"))
		whole, pieces := &Call{Method: GetLogs}, &Call{Method: GetLogs}
		err := newMessage(bytes.NewReader(answer), 1<<20).deliver([]*Call{whole}, 1)
		again := newMessage(iotest.OneByteReader(bytes.NewReader(answer)), 1<<20).deliver([]*Call{pieces}, 1)
		require.Equal(t, err == nil, again == nil, "%v, %v", err, again)
		require.Equal(t, whole.Logs, pieces.Logs)
		require.Equal(t, whole.Err == nil, pieces.Err == nil)
		if err != nil || whole.Err != nil || len(whole.Logs) == 0 {
			return
		}

		written, err := json.Marshal(whole.Logs)
		require.NoError(t, err)
		var want []types.Log
		require.NoError(t, json.Unmarshal(written, &want))
		got, err := ParseLogs(written)
		require.NoError(t, err)
		require.Len(t, got, len(want))
		for i := range want {
			require.Equal(t, want[i], got[i])
		}
	})
}

// Results of valid JSON are found where encoding/json finds them, and nothing panics.
func FuzzResponses(f *testing.F) {
	f.Add([]byte(`[{"jsonrpc":"2.0","id":1,"result":[{"a":"]\"}\\"}]},{"id":2,"error":{"code":-1,"message":"no"}}]`))
	f.Add([]byte(`{"id":1,"result":null}`))
	f.Add([]byte(`{"method":"eth_subscription","params":{"result":{}}}`))
	f.Add([]byte(`{"id":7,"result": "a" }`))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, single, err := newMessage(bytes.NewReader(b), 1<<20).responses(len(b)+1,
			func(uint64, bool) *Call { return &Call{} })
		if err != nil || !json.Valid(b) || bytes.ContainsRune(b, '\\') {
			return
		}

		var want []map[string]json.RawMessage
		if single {
			want = make([]map[string]json.RawMessage, 1)
			require.NoError(t, json.Unmarshal(b, &want[0]))
		} else {
			require.NoError(t, json.Unmarshal(b, &want))
		}

		require.Len(t, list, len(want))
		for i := range list {
			var compact bytes.Buffer
			if result := want[i]["result"]; result != nil {
				require.NoError(t, json.Compact(&compact, result))
			}

			require.Equal(t, compact.String(), string(list[i].answer.Result))
		}
	})
}

func BenchmarkLogs(b *testing.B) {
	one := sample()
	many := []byte("[" + strings.TrimSuffix(strings.Repeat(string(one[1:len(one)-1])+",", 1000), ",") + "]")
	for name, decode := range map[string]func() error{
		"as_they_arrive": func() error { _, err := ParseLogs(many); return err },
		"encoding_json":  func() error { var logs []types.Log; return json.Unmarshal(many, &logs) },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(many)))
			b.ReportAllocs()
			for b.Loop() {
				if err := decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Fill reads the answer to a batch with ids from first on, and fills it in.
func Fill(from io.Reader, limit int64, calls []*Call, first uint64) error {
	return newMessage(from, limit).deliver(calls, first)
}
