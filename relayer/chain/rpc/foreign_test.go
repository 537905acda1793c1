package rpc_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/stretchr/testify/require"

	"github.com/fusion-prime/escrow-relayer/relayer/chain/rpc"
)

// logWith is a log in which some members are otherwise than geth gives them, or left out.
func logWith(members map[string]string) string {
	all := map[string]string{
		"address": `"0x00000000000000000000000000000000000000ee"`, "topics": `["0x` + strings.Repeat("0a", 32) + `"]`,
		"data": `"0x0102"`, "blockNumber": `"0x10"`, "blockHash": `"0x` + strings.Repeat("0b", 32) + `"`,
		"transactionHash": `"0x` + strings.Repeat("0c", 32) + `"`, "transactionIndex": `"0x0"`, "logIndex": `"0x0"`,
		"removed": "false", "blockTimestamp": `"0x6553f100"`,
	}
	for k, v := range members {
		if all[k] = v; v == "" {
			delete(all, k)
		}
	}

	var list []string
	for k, v := range all {
		list = append(list, fmt.Sprintf("%q:%s", k, v))
	}

	return "[{" + strings.Join(list, ",") + "}]"
}

// Logs as nodes really give them, each with who does. A time that cannot be read is not known: the
// block's header has it.
func TestLogsOfOtherNodes(t *testing.T) {
	const stamp = 0x6553f100
	for name, test := range map[string]struct {
		members map[string]string
		time    uint64 // zero: not known
	}{
		// geth v1.16.0 (ethereum/go-ethereum#32120), Sonic before 0xsoniclabs/sonic#569
		"a time in decimal": {map[string]string{"blockTimestamp": "1700000000"}, stamp},
		// older nodes, and hyperledger/fabric-x-evm#210, whose 0x0 is no time either
		"no time":   {map[string]string{"blockTimestamp": ""}, 0},
		"null time": {map[string]string{"blockTimestamp": "null"}, 0},
		"zero time": {map[string]string{"blockTimestamp": `"0x0"`}, 0},
		// a member that nobody needs must not make the others unreadable
		"a time in words": {map[string]string{"blockTimestamp": `"2023-11-14T22:13:20Z"`}, 0},
		// skalenetwork/skaled#1821
		"indexes as numbers": {map[string]string{"logIndex": "0", "transactionIndex": "0"}, stamp},
		// hiero-ledger/hiero-json-rpc-relay#2465, ConsenSys-archive/ganache#103
		"leading zeros": {map[string]string{"logIndex": `"0x00"`, "blockNumber": `"0x0010"`}, stamp},
		"upper case":    {map[string]string{"address": `"0X00000000000000000000000000000000000000EE"`}, stamp},
	} {
		t.Run(name, func(t *testing.T) {
			logs, err := rpc.ParseLogs([]byte(logWith(test.members)))
			require.NoError(t, err)
			require.Len(t, logs, 1)
			require.Equal(t, common.Address{19: 0xee}, logs[0].Address)
			require.EqualValues(t, 16, logs[0].BlockNumber)
			require.Zero(t, logs[0].Index)
			require.Equal(t, test.time, logs[0].BlockTimestamp)
		})
	}
}

// Headers as nodes give them.
func TestHeadersOfOtherNodes(t *testing.T) {
	hash := func(b string) string { return `"0x` + strings.Repeat(b, 32) + `"` }
	for name, text := range map[string]string{
		"genesis without a parent": `{"number":"0x0","hash":` + hash("0b") + `,"timestamp":"0x5"}`,
		"genesis whose parent is null": `{"number":"0x0","hash":` + hash("0b") +
			`,"timestamp":"0x5","parentHash":null}`,
		// paradigmxyz/reth#1486
		"leading zeros": `{"number":"0x00","hash":` + hash("0b") + `,"timestamp":"0x05","parentHash":` + hash("00") + `}`,
		"as numbers":    `{"number":0,"hash":` + hash("0b") + `,"timestamp":5,"parentHash":` + hash("00") + `}`,
	} {
		t.Run(name, func(t *testing.T) {
			call := rpc.ByNumber(0)
			call.Result = []byte(text)
			header, err := call.Header(0)
			require.NoError(t, err)
			require.Equal(t, rpc.Header{Hash: common.HexToHash(strings.Repeat("0b", 32)), Time: 5}, header)
		})
	}

	parentless := rpc.ByNumber(7)
	parentless.Result = []byte(`{"number":"0x7","hash":` + hash("0b") + `,"timestamp":"0x5"}`)
	_, err := parentless.Header(7)
	require.ErrorContains(t, err, "parentHash", "only the first block has none")
}

// A time that is not in seconds is refused with the value, before it gets to the database.
func TestTimesThatAreNoSeconds(t *testing.T) {
	for stamp, words := range map[uint64]string{
		1_700_000_000_000:          "1700000000000 seems to be in milliseconds",
		1_700_000_000_000_000:      "1700000000000000 seems to be in microseconds",
		1_700_000_000_000_000_000:  "1700000000000000000 seems to be in nanoseconds",
		253_402_300_800:            "253402300800 is beyond the year 9999",
		18_446_744_073_709_551_615: "18446744073709551615 is beyond the year 9999",
		253_402_300_799:            "",
	} {
		call := rpc.ByNumber(7)
		hash := "0x" + strings.Repeat("0b", 32)
		call.Result = fmt.Appendf(nil, `{"number":"0x7","hash":%q,"parentHash":%q,"timestamp":"%#x"}`, hash, hash, stamp)
		_, err := call.Header(7)
		_, hex := rpc.ParseLogs([]byte(logWith(map[string]string{"blockTimestamp": fmt.Sprintf(`"%#x"`, stamp)})))
		_, decimal := rpc.ParseLogs([]byte(logWith(map[string]string{"blockTimestamp": fmt.Sprint(stamp)})))
		for _, err := range []error{err, hex, decimal} {
			if words == "" {
				require.NoError(t, err)
				continue
			}

			require.ErrorIs(t, err, rpc.ErrInvalid)
			require.ErrorContains(t, err, words)
		}
	}
}

// How many transactions a block has is seen in their list; newHeads have none.
func TestTransactionsAreCounted(t *testing.T) {
	begin := `{"number":"0x7","hash":"0x` + strings.Repeat("0b", 32) + `","timestamp":"0x5","parentHash":"0x` +
		strings.Repeat("0a", 32) + `"`
	for text, want := range map[string]int{
		`}`: 0, `,"transactions":[]}`: 0, `,"transactions":{}}`: 0, `,"transactions":null}`: 0,
		`,"transactions":["0x1","0x2"]}`: 2,
	} {
		call := rpc.ByNumber(7)
		call.Result = []byte(begin + text)
		header, err := call.Header(7)
		require.NoError(t, err)
		require.Equal(t, want, header.Transactions, text)
	}
}
