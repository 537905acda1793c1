package contract

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"
)

func TestEachText(t *testing.T) {
	e := Event{Args: json.RawMessage(`{"payer":"0xAa","ok":true,"amount":"12","nested":{"payer":"0xBb","list":["1","2"]},"list":["3",{"a":"]"}],"text":"a\"b\\","payee":"0xCc"}`)}
	var got []string
	e.EachText(func(name, value []byte) { got = append(got, string(name)+"="+string(value)) })
	require.Equal(t, []string{"payer=0xAa", "amount=12", `text=a\"b\\`, "payee=0xCc"}, got)
	for _, args := range []string{"", "{}", `{"a`, `{"a"`, `{"a":`, `{"a":"b`, `{"a":[`, `{"a":{"b`, `"`, `\`} {
		e.Args = json.RawMessage(args)
		e.EachText(func(_, _ []byte) { require.Equal(t, args, "no text in "+args) })
	}
}

// What Decode writes and encoding/json reads, EachText reads the same.
func FuzzEachText(f *testing.F) {
	f.Add(`{"a":"b","c":["d",{"e":"f"}],"g":true}`)
	f.Add(`{"a":{},"b":[],"c":"\\","d":"\""}`)
	f.Fuzz(func(t *testing.T, args string) {
		e, got := Event{Args: json.RawMessage(args)}, map[string]string{}
		e.EachText(func(name, value []byte) { got[string(name)] = string(value) }) // over anything it ends
		var want map[string]any
		if json.Unmarshal([]byte(args), &want) != nil || want == nil {
			return
		}

		for name, value := range want {
			text, ok := value.(string)
			if !ok || strings.Contains(args, `\`) || !strings.Contains(args, `"`+name+`"`) ||
				strings.Count(args, `"`+name+`"`) > 1 || strings.ContainsRune(args, '\uFFFD') ||
				strings.ToValidUTF8(args, "") != args {
				continue
			}

			require.Equal(t, text, got[name])
		}
	})
}

func TestIDsReadBack(t *testing.T) {
	tx := common.HexToHash("0xabc0000000000000000000000000000000000000000000000000000000000def")
	for _, e := range []Event{{TxHash: tx}, {TxHash: tx, LogIndex: 12},
		{TxHash: tx, LogIndex: math.MaxInt32, Occurrence: 1}, {TxHash: tx, Occurrence: math.MaxInt16}} {
		hash, index, occurrence, err := ParseID(e.ID())
		require.NoError(t, err)
		require.Equal(t, Event{TxHash: hash, LogIndex: index, Occurrence: occurrence}, e)
	}

	require.Equal(t, tx.Hex()+":12", (&Event{TxHash: tx, LogIndex: 12}).ID(), "as the first plan has it")
	for _, id := range []string{"", tx.Hex(), tx.Hex() + ":", tx.Hex() + ":-1", tx.Hex() + ":01", tx.Hex() + ":1:0",
		tx.Hex() + ":1:32768", tx.Hex() + ":99999999999", "0x12:1", tx.Hex() + ":1:2:3", " " + tx.Hex() + ":1"} {
		_, _, _, err := ParseID(id)
		require.Error(t, err, id)
	}
}
