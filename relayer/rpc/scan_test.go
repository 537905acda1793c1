package rpc

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/core/types"
	"github.com/stretchr/testify/require"
)

const someLogs = `[{"address":"0xb5a5F22694352C15B00323844aD545ABb2B11028","topics":["0x99b5620489b6ef926d4518936cfec15d305452712b88bd59da2d9c10fb0953e8"],` +
	`"data":"0x0000010203","blockNumber":"0x1a","transactionHash":"0x77","transactionIndex":"0x0","blockHash":"0x88","logIndex":"0x3","removed":false}]`

func sample() []byte {
	long := func(digit string) string { return "0x" + strings.Repeat(digit, 64) }
	return []byte(strings.NewReplacer(`"0x77"`, `"`+long("7")+`"`, `"0x88"`, `"`+long("8")+`"`).Replace(someLogs))
}

func TestScanLogs(t *testing.T) {
	b := sample()
	var want []types.Log
	require.NoError(t, json.Unmarshal(b, &want))
	got, ok := scanLogs(b)
	require.True(t, ok)
	require.Equal(t, want, got)

	empty, ok := scanLogs([]byte(" [ ] "))
	require.True(t, ok)
	require.NotNil(t, empty)
	require.Empty(t, empty)

	// Members that a log need not have are passed over, and null is no time.
	got, ok = scanLogs(bytes.Replace(b, []byte(`"removed":false`),
		[]byte(`"removed":false,"blockTimestamp":null,"logType":"mined","l1BatchNumber":null,"extra":{"a":[1,"]"]}`), 1))
	require.True(t, ok)
	require.Equal(t, want, got)
	got, ok = scanLogs(bytes.Replace(b, []byte(`"removed":false`),
		[]byte(`"removed":true,"blockTimestamp":"0x6553f100"`), 1))
	require.True(t, ok)
	require.True(t, got[0].Removed)
	require.EqualValues(t, 1_700_000_000, got[0].BlockTimestamp)

	// What the scanner leaves to encoding/json comes out right all the same.
	for old, replacement := range map[string]string{
		`"removed":false`: `"\u0072emoved":false`,
		`"logIndex"`:      `"LogIndex"`,
	} {
		b := bytes.Replace(sample(), []byte(old), []byte(replacement), 1)
		_, ok := scanLogs(b)
		require.False(t, ok, replacement)
		got, err := ParseLogs(b)
		require.NoError(t, err, replacement)
		require.Equal(t, want, got)
	}

	for _, bad := range []string{
		"", "null", "{}", "[", "[{}]", "[null]x", string(b) + "]", `[{"address":1}]`, string(b[:len(b)-1]),
		strings.Replace(string(b), `"0x1a"`, `"0x1g"`, 1), strings.Replace(string(b), `"0x1a"`, `"26"`, 1), strings.Replace(string(b), "0x0000010203", "0x000", 1),
	} {
		_, err := ParseLogs([]byte(bad))
		require.ErrorIs(t, err, ErrInvalid, bad)
	}
}

// What the scanner accepts, encoding/json accepts, with the same result.
func FuzzScanLogs(f *testing.F) {
	b := sample()
	f.Add(b)
	f.Add([]byte("[]"))
	f.Add(bytes.Replace(b, []byte("false"), []byte(`false,"x":"y"`), 1))
	f.Add(bytes.Replace(b, []byte("false"), []byte(`false,"blockTimestamp":"0x0"`), 1))
	f.Add(append(append(b[:len(b)-1:len(b)-1], ','), b[1:]...))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := scanLogs(b)
		if !ok {
			return
		}

		var want []types.Log
		require.NoError(t, json.Unmarshal(b, &want))
		require.Equal(t, want, got)
	})
}

// Results of valid JSON are found where encoding/json finds them, and nothing panics.
func FuzzSplitResponses(f *testing.F) {
	f.Add([]byte(`[{"jsonrpc":"2.0","id":1,"result":[{"a":"]\"}\\"}]},{"id":2,"error":{"code":-1,"message":"no"}}]`))
	f.Add([]byte(`{"id":1,"result":null}`))
	f.Add([]byte(`{"method":"eth_subscription","params":{"result":{}}}`))
	f.Add([]byte(`{"id":7,"result": "a" }`))
	f.Fuzz(func(t *testing.T, b []byte) {
		list, single, err := splitResponses(b, len(b)+1)
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
			require.Equal(t, string(want[i]["result"]), string(list[i].result))
			require.Equal(t, string(want[i]["params"]), string(list[i].params))
		}
	})
}

func BenchmarkParseLogs(b *testing.B) {
	one := sample()
	many := []byte("[" + strings.TrimSuffix(strings.Repeat(string(one[1:len(one)-1])+",", 1000), ",") + "]")
	b.Run("scanner", func(b *testing.B) {
		b.SetBytes(int64(len(many)))
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := scanLogs(many); !ok {
				b.Fatal("not scanned")
			}
		}
	})
	b.Run("encoding_json", func(b *testing.B) {
		b.SetBytes(int64(len(many)))
		b.ReportAllocs()
		for b.Loop() {
			var logs []types.Log
			if json.Unmarshal(many, &logs) != nil {
				b.Fatal("not decoded")
			}
		}
	})
}
